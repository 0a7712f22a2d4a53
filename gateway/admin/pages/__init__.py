"""Find the pages of the console. Each module of this package that defines a page as `PAGE` is one."""

import importlib
import pkgutil
from collections.abc import Mapping

from gateway.admin.pages.page import ConsolePage

__all__ = ["console_pages"]


def console_pages() -> Mapping[str, ConsolePage]:
    """Return all pages by the name of their module, in the order of the navigation."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    pages: dict[str, ConsolePage] = {name: one.PAGE for name, one in modules.items() if hasattr(one, "PAGE")}
    return dict(sorted(pages.items(), key=lambda item: item[1].position))
