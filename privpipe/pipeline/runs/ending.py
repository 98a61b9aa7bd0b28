"""How a run that published ends on the terminal: verdict, what is worth opening, what is next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from privpipe.pipeline.runs.run import Run
from privpipe.report.audit_text import say_gate, say_judged, say_verdict
from privpipe.store.access.location import shown


def say_end(run: Run, findings: Mapping[str, Any]) -> Iterator[str]:
    """Lines in the columns of the stages above them."""
    report = shown(run.report_url)
    yield f"done     release {shown(run.release_url)}"
    yield f"judged   {say_judged(findings)}"
    yield f"gate     {say_gate(findings)}"
    yield f"verdict  {say_verdict(findings)}"
    yield f"open     {report}/report.html  the report, for you: it holds small counts"
    yield f"         {report}/public.html  the report, for everybody"
    yield f"         {shown(run.model_url)}  the model, for records to come; keep it private"
    yield f"next     privpipe open {shown(run.release_url)}"
