"""Links from a page to what is in the repository and is no page of `docs/`."""

from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

_PAGES = {
    "README": "index",
    "CONTRIBUTING": "project/contributing",
    "CHANGELOG": "project/changelog",
    "custom_ops/model/README": "project/models",
    "packages/wheel/README": "project/wheel",
}


class RepositoryLinks(SphinxTransform):
    """A link to README.md and the like leads to its page on the site; one to a folder becomes the folder's path."""

    default_priority = 5

    def apply(self, **_: object) -> None:
        root = Path(self.app.srcdir).parent
        folder = Path(self.env.doc2path(self.env.docname)).parent
        for link in list(self.document.findall(pending_xref)):
            if link.get("reftype") != "myst":
                continue
            path = str(link["reftarget"]).partition("#")[0]
            # A file is named from the folder `docs`, anything else from the page.
            base = Path(self.app.srcdir) if link["refdomain"] == "doc" else folder
            target = (base / path).resolve()
            if not path or not target.is_relative_to(root):
                continue
            name = target.relative_to(root).as_posix()
            if name in _PAGES:
                link["reftarget"] = _PAGES[name]
            elif target.is_dir():
                link.replace_self(nodes.literal(text=name + "/"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Runs before MyST resolves its links."""
    app.add_transform(RepositoryLinks)
    return {"parallel_read_safe": True}
