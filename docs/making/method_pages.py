"""One page per method: its row of the table, and what somebody wrote about it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from docs.making.configuration import tabulate_options
from docs.making.figures import DRAWN
from privpipe import numerics
from privpipe.protocols import Method
from privpipe.sanitizers import METHODS

__all__ = ["write_method_pages"]

NUMERICS = Path(numerics.__file__).parent

PROVED = (
    *("null_space", "null_space_targeted", "privacy_mapping"),
    *("masking", "masking_private", "noisy"),
)
"""Methods that promise a number, or say with a proof what they do not; LEACE's is its paper's."""

RELEASES = {"rows": "one released record per record", "surrogate": "records of its own, no one's"}


MISSING = {
    "privacy_mapping": "a category of its own",
    "masking": 'refused, or completed and counted by `missing = "complete"`',
    "masking_private": "refused: leave such records out, or fill them in before",
    "rand": "of training records nothing is read; of a record to clean",
    "noisy": 'refused, or withheld by `[release] nonfinite = "withhold"`; `"impute"` takes means '
    "of public records only",
}
"""What methods do with missing values that differ from `USUAL`."""

USUAL = (
    'refused, or by `[release] nonfinite` filled in with means of training records (`"impute"`) '
    'or withheld (`"withhold"`), and counted. `use = "marked"` in a schema adds a feature that '
    "says where they were"
)


def say_missing(name: str) -> str:
    """What a method does with missing values."""
    said = MISSING.get(name, USUAL)
    return f"{said}: {USUAL}" if name == "rand" else said


def write_method_pages(bodies: Path) -> dict[str, str]:
    """Pages by their place in the site: one per method, and one that lists them."""
    pages = {f"methods/{name}.md": _write(method, bodies) for name, method in METHODS.items()}
    rows = [
        f"| [`{name}`]({name}.md) | {method.promise} | {method.source} |"
        for name, method in METHODS.items()
    ]
    proofs = [f"proof_{wing}" for wing in dict.fromkeys(filter(None, map(find_proof, METHODS)))]
    toctree = ["```{toctree}", ":hidden:", "", *METHODS, *proofs, "```"]
    head = ["| method | promise | source |", "|---|---|---|"]
    about_it = (
        "[Choose a method](../howto/choose_a_method.md) says which one to begin with. A promise "
        "is about what it says and nothing else: see [what is not promised]"
        "(../explanation/not_promised.md)."
    )
    pages |= {
        f"methods/proof_{path.parent.name}.md": path.read_text()
        for path in sorted(NUMERICS.glob("*/PROOF.md"))
    }
    lines = ["# Methods", "", about_it, "", *head, *rows, "", *toctree]
    pages["methods/index.md"] = "\n".join(lines)
    return pages


def find_proof(name: str) -> str | None:
    """The wing whose page proves what a method promises; None where it promises nothing."""
    wing = METHODS[name].options.__module__.split(".")[2]
    return wing if name in PROVED and (NUMERICS / wing / "PROOF.md").exists() else None


def _write(method: Method, bodies: Path) -> str:
    proof = find_proof(method.name)
    body = bodies / f"{method.name}.md"
    text = body.read_text() if body.exists() else _read_module(method)
    figure = (
        [
            f"```{{image}} /_static/figures/{method.name}.svg",
            f":alt: What {method.name} does to the records of the figure",
            "```",
            "",
            DRAWN[method.name],
            "",
        ]
        if method.name in DRAWN
        else []
    )
    return "\n".join(
        [
            f"# `{method.name}`",
            "",
            f"**Promise** {method.promise}  ",
            f"**Releases** {RELEASES[method.releases]}  ",
            f"**Missing values** {say_missing(method.name)}  ",
            f"**Source** {method.source}" + ("  " if proof else ""),
            *([f"**Proof** [of what holds](proof_{proof}.md)"] if proof else []),
            "",
            text.strip(),
            "",
            *figure,
            "## Keys",
            "",
            f'In a configuration, `[method] name = "{method.name}"`:',
            "",
            *tabulate_options(method.name),
            "",
        ]
    )


def _read_module(method: Method) -> str:
    """What the first lines of the method's module say, as Markdown."""
    text = str(importlib.import_module(method.options.__module__).__doc__)
    return re.sub(r"`{1,2}([^`]+)`{1,2}", r"`\1`", text)
