"""How Sphinx builds the site: `make docs`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_ext")]

import tfddl  # noqa: E402

# An attribute of the package, which autodoc looks for as a module.
sys.modules["tfddl.optimizers"] = tfddl.optimizers

project = "tfddl"
author = "the authors of tfddl"
copyright = author
release = version = tfddl.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "docstrings",
    "repository_links",
]
exclude_patterns = ["_ext", "_build"]

html_theme = "furo"
html_title = f"tfddl {version}"
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 4
# A page may say `[errors.md](errors.md)`, and a docstring `tfddl.allreduce`: both have to lead somewhere.
nitpicky = True
# Types of TensorFlow, Keras and NumPy have their documentation elsewhere.
nitpick_ignore_regex = [(r"py:.*", r"(?!tfddl\.).*")]
suppress_warnings = ["myst.header"]  # README and changelog begin deeper where a page includes them

default_role = "code"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say type, shape and unit of each argument
napoleon_use_rtype = False
copybutton_prompt_text = r"^\$ |^    "
copybutton_prompt_is_regexp = True
linkcheck_timeout = 20
