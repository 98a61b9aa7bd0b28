"""What an opened release says of itself: ``release.privpipe.report()``, in xarray's own way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xarray as xr

from privpipe.described import described
from privpipe.errors import InputError
from privpipe.protocols import Guarantee
from privpipe.report.audit_text import say_gate, say_verdict, write_audit_markdown
from privpipe.store.arrays.headers import read_promise


@dataclass(frozen=True, repr=False)
class ReleaseReport:
    """The audit of a release, as its header holds it.

    Parameters
    ----------
    findings
        What ``audit.json`` holds, as far as it is published.
    """

    findings: Mapping[str, Any]

    @property
    def verdict(self) -> str:
        """ "safe", "not protected", "leaks", "unproven" or "unknown"."""
        return str(self.findings["adversaries"]["verdict"])

    def __repr__(self) -> str:
        return write_audit_markdown(self.findings)

    def _repr_markdown_(self) -> str:
        return write_audit_markdown(self.findings)


def _facts(view: ReleaseView) -> dict[str, str]:
    header, promise = view.header, view.guarantee
    number = "" if promise.number is None else f" {promise.number:g} {promise.unit}"
    found = {
        "records": f"{next(iter(view.dataset.sizes.values())):,}",
        "arrays": ", ".join(map(str, view.dataset.data_vars)),
        "method": str(header["method"]),
        "promise": f"{promise.kind}{number}, {promise.scope}",
    }
    if audit := header.get("audit"):
        found |= {"verdict": say_verdict(audit)}
        found |= {"gate": say_gate(audit)} if audit.get("gate") else {}  # not in older ones
    return found


@described(_facts)
@xr.register_dataset_accessor("privpipe")  # type: ignore[no-untyped-call]  # xarray's own
class ReleaseView:
    """Header, guarantee and report of an opened release.

    Raises
    ------
    InputError
        If the dataset is no release.
    """

    def __init__(self, dataset: xr.Dataset) -> None:
        if "privpipe" not in dataset.attrs:
            raise InputError(
                "This dataset is no release of privpipe.",
                remedy="Open one with privpipe.open_release; arithmetic drops attributes unless "
                "xarray is told to keep them.",
            )
        self.dataset = dataset

    @property
    def header(self) -> Mapping[str, Any]:
        """All that the release says of itself."""
        header: Mapping[str, Any] = self.dataset.attrs["privpipe"]
        return header

    @property
    def guarantee(self) -> Guarantee:
        """What every record is promised."""
        return read_promise(self.header)

    def report(self) -> ReleaseReport:
        """The audit that the release carries."""
        return ReleaseReport(self.header["audit"])
