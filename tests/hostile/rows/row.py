"""What a row of the table is, and the judges: what "refused" means, measured from outside where there is one."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.hostile.home import word_of
from tests.hostile.outside import CREDENTIAL
from tests.hostile.stage import Called, Stage

BOTH: Final = ("standard", "strict")
STRICT: Final = ("strict",)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether the walls held, and what came."""

    held: bool
    told: str


Facts = Mapping[str, Any]
Judge = Callable[[Stage, Called, Facts], Outcome]


@dataclass(frozen=True, slots=True)
class Row:
    """One behaviour of one server.

    Args:
        name: of the row, unlike all others.
        what: the server does.
        attack: `module.function` of `servers/attacks`.
        refused: whether it was, by its effect.
        server: the language of the server.
        way: `shell`: by another interpreter that a shell starts.
        facts: beside those that all attacks are given, or how they are found.
        profiles: which must refuse it.
        works: the profiles under which it must not be refused.
        needs: the feature of the kernel that refuses it.
        seen: what the console and the log must show of the session, as `KIND WHAT` with facts; empty where the kernel
            tells nobody.
        already: why it is refused without a sandbox too; empty if it succeeds then.
        root: why only root's servers could succeed; empty if every user's do.
        p99_s: the most that a bystander may wait meanwhile, under walls.
    """

    name: str
    what: str
    attack: str
    refused: Judge
    _: KW_ONLY
    server: str = "python"
    way: str = ""
    facts: Facts | Callable[[Stage], Facts] = field(default_factory=dict)
    profiles: tuple[str, ...] = BOTH
    works: tuple[str, ...] = ()
    needs: str = "landlock"
    seen: str = ""
    already: str = ""
    root: str = ""
    p99_s: float = 2.0

    def facts_on(self, stage: Stage) -> Facts:
        """What the attack is given beside what all are given."""
        return self.facts(stage) if callable(self.facts) else self.facts

    def must_refuse(self, profile: str) -> bool:
        return profile in self.profiles or bool(self.already)


def canary(name: str) -> Callable[[Stage], Facts]:
    """The facts of an attack on that canary."""
    return lambda stage: {"path": str(stage.home.names[name])}


def _brief(called: Called) -> str:
    return " ".join(called.text.split())[:100]


def no_answer(stage: Stage, called: Called, facts: Facts) -> Outcome:
    """Nothing was got: for what has no effect outside."""
    return Outcome(not called.got, _brief(called))


def keeps(*names: str) -> Judge:
    """None of these secrets is in the answer."""

    def judge(stage: Stage, called: Called, facts: Facts) -> Outcome:
        words = [CREDENTIAL if name == "credential" else word_of(name) for name in names]
        stolen = [name for name, word in zip(names, words, strict=True) if word in called.text]
        return Outcome(not stolen, f"stolen: {', '.join(stolen)}" if stolen else _brief(called))

    return judge


def unchanged(name: str) -> Judge:
    """The canary is as it was."""

    def judge(stage: Stage, called: Called, facts: Facts) -> Outcome:
        changed = stage.home.changed(name)
        return Outcome(not changed, f"{name} changed" if changed else _brief(called))

    return judge


def not_there(path: str) -> Judge:
    """No file has come into being at the path, which may name facts."""

    def judge(stage: Stage, called: Called, facts: Facts) -> Outcome:
        target = Path(path.format(**facts))
        made = list(target.parent.glob(target.name + "*")) if target.parent.is_dir() else []
        for each in made:
            each.unlink()
        return Outcome(not made, f"made: {', '.join(map(str, made))}" if made else _brief(called))

    return judge


def unreached(*hosts: str, port: int | None = None, protocol: str = "") -> Judge:
    """Not one packet came to the host outside."""

    def judge(stage: Stage, called: Called, facts: Facts) -> Outcome:
        came = [packet for host in hosts for packet in stage.outside.reached(host, port)]
        came = [packet for packet in came if protocol in ("", packet.protocol)]
        if came:
            return Outcome(False, f"{len(came)} packets, the first {came[0].protocol} to {came[0].to}:{came[0].port}")
        return Outcome(True, _brief(called))

    return judge


def not_heard(name: str) -> Judge:
    """No service of the machine was connected to."""

    def judge(stage: Stage, called: Called, facts: Facts) -> Outcome:
        heard = stage.local.heard.count(name)
        stage.local.heard.clear()
        return Outcome(not heard, f"{heard} connections to {name}" if heard else _brief(called))

    return judge


def unheard_by_sibling(stage: Stage, called: Called, facts: Facts) -> Outcome:
    """Nothing reached the sibling, and the answer is without its secret."""
    heard = stage.tell("sibling", "heard")
    reached = facts["token"] in str(heard) or (called.got and word_of("sibling") in called.got)
    return Outcome(not reached, "reached the sibling" if reached else _brief(called))


def alive(stage: Stage, called: Called, facts: Facts) -> Outcome:
    """Gateway, sibling and bystander live on, the very same processes."""
    time.sleep(0.3)
    if stage.gateway.process.poll() is not None:
        return Outcome(False, "the gateway died")
    missing = set(facts["siblings"]) - set(stage.pids("sibling.py"))
    return Outcome(not missing, f"{len(missing)} siblings died" if missing else _brief(called))


def at_most(most: int) -> Judge:
    """Its own count stays below the limit; a server that was ended for it has not got there."""

    def judge(stage: Stage, called: Called, facts: Facts) -> Outcome:
        found = re.search(r": (\d+)", called.got)
        count = int(found.group(1)) if found else 0
        return Outcome(count <= most, _brief(called))

    return judge


def processes_gone(stage: Stage, called: Called, facts: Facts) -> Outcome:
    """The session was ended after the attack: nothing of it may run any more."""
    held = stage.eventually(lambda: not stage.left_since(facts["before"]), 8.0)
    return Outcome(held, called.text[:100] if held else "a process of the session lives on")


def serves_on(stage: Stage, called: Called, facts: Facts) -> Outcome:
    """There is nothing to refuse: others must not feel it."""
    return Outcome(stage.gateway.process.poll() is None, _brief(called))


def both(*judges: Judge) -> Judge:
    """All of them."""

    def judge(stage: Stage, called: Called, facts: Facts) -> Outcome:
        found = [one(stage, called, facts) for one in judges]
        return next((each for each in found if not each.held), found[0])

    return judge
