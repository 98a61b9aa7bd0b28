"""The site: text by hand, reference, methods and figures made from the code in the build."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

# Tutorials call the command of the environment that builds.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

import matplotlib  # noqa: E402

matplotlib.use("Agg")

import privpipe  # noqa: E402
from docs.making.figures import draw_figures  # noqa: E402
from docs.making.pages import write_pages  # noqa: E402

project, author, language = "privpipe", "the founding engineers of privpipe", "en"
copyright = "2026, Apache-2.0"
version = release = privpipe.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "docs.making.mathml",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "making", "methods/bodies", "tutorials/README.rst"]
suppress_warnings = ["config.cache"]
html_theme = "furo"
html_title = f"privpipe {release}"
html_static_path = ["_static"]
html_theme_options = {"navigation_with_keys": True}
html_show_sphinx = False
# Formulae are MathML, which browsers draw themselves: the site needs no network.
html_math_renderer = "mathml"
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
default_role = "code"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True

# Releases of tutorials are thrown away: no account of a user knows of them.
os.environ |= {name: tempfile.mkdtemp() for name in ("PRIVPIPE_ACCOUNT", "XDG_DATA_HOME")}

DATA = os.environ.get("PRIVPIPE_PAPER_DATA", "")
"""Tutorials on the papers' data run where it is; the first runs anywhere."""

sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "tutorial",
    "filename_pattern": r"plot_" if DATA else r"plot_1_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "show_memory": False,
    "write_computation_times": False,
    "download_all_examples": False,
    "show_signature": False,
    "plot_gallery": os.environ.get("PRIVPIPE_DOCS_TUTORIALS", "1") == "1",
}


def _name_options(app: Any, what: str, name: str, thing: Any, *rest: Any) -> Any:
    """Options of methods by keyword: their annotations hold whole sentences, said below."""
    return ("(**options)", "") if hasattr(thing, "__pydantic_fields__") else None


def _skip_routing(app: Any, what: str, name: str, *rest: Any) -> bool | None:
    """What scikit-learn adds to each transformer for its own routing."""
    return True if name.endswith("_request") or name == "get_metadata_routing" else None


def setup(app: Any) -> None:
    """Write what is made from the code before anything is read."""
    app.connect("autodoc-process-signature", _name_options)
    app.connect("autodoc-skip-member", _skip_routing)
    write_pages(HERE)
    draw_figures(HERE / "_static" / "figures")
