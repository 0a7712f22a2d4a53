"""The pages of the console: each module of this package defines one as `PAGE`, and needs to be listed nowhere."""

import importlib
import pkgutil
from collections.abc import Mapping

from gateway.admin.page import ConsolePage

__all__ = ["console_pages"]


def console_pages() -> Mapping[str, ConsolePage]:
    """All pages by the name of their module, in the order of the navigation."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    pages: dict[str, ConsolePage] = {name: importlib.import_module(f"{__name__}.{name}").PAGE for name in names}
    return dict(sorted(pages.items(), key=lambda item: item[1].position))
