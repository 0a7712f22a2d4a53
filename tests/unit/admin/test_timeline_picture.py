"""`gateway.admin.timeline_picture`: lanes of what happened in a session."""

import re

from gateway.admin.reports import TimelineRow
from gateway.admin.timeline_picture import picture_of
from tests.requirements import requirement

ROWS = [
    TimelineRow(at=100.0, kind="session", name="created"),
    TimelineRow(at=110.0, kind="call", server="files", name="<read>", outcome="ok", took_s=5.0, until=115.0),
    TimelineRow(at=200.0, kind="call", server="files", name="read", outcome="tool error", took_s=0.001, until=200.001),
    TimelineRow(at=120.0, kind="call", server="web", name="get", outcome="ok", took_s=9.0, count=3, until=180.0),
    TimelineRow(at=190.0, kind="refusal", name="delete", why="read-only"),
]


@requirement("ops.timeline")
def test_each_kind_and_each_server_has_a_lane_on_one_scale() -> None:
    picture = picture_of(ROWS)
    assert picture is not None
    assert [lane.name for lane in picture.lanes] == ["Session", "files calls", "web calls", "Refused"]
    assert (picture.begin, round(picture.end)) == (100.0, 200)
    files, web = picture.lanes[1].svg, picture.lanes[2].svg
    places = [(float(x), float(width)) for x, width in re.findall(r'x="([\d.]+)" y="0" width="([\d.]+)"', files)]
    assert [(round(x), round(width)) for x, width in places] == [(100, 50), (997, 3)]
    assert 'class="mark failed"' in files and 'aria-label="files calls: 2, 1 failed"' in files
    assert 'class="mark call many"' in web and "(3 times)" in web
    assert "<read>" not in files and "&lt;read&gt;" in files


def test_nothing_has_no_picture_and_one_moment_has_one() -> None:
    assert picture_of([]) is None
    moment = picture_of(ROWS[:1])
    assert moment is not None and 'x="0.0"' in moment.lanes[0].svg
