"""Tables and the page: self-contained, escaped, and no more than the numbers given."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.threats.inference import measure_attacks
from privpipe.attacks.threats.verdicts.attack_report import AttackReport
from privpipe.report.page import PageSection, render_page
from privpipe.report.tables import format_limits, format_number, summarise_attacks


@pytest.fixture(scope="module")
def report() -> AttackReport:
    random = np.random.default_rng(0)
    secret = random.integers(0, 2, 300)
    x = random.normal(size=(300, 3)) + 987654.25 * secret[:, None]
    options = AttackOptions(adversaries=("logistic", "least_squares"))
    return measure_attacks(x, np.column_stack([secret, secret]), raw=x, options=options)


class Reader(HTMLParser):
    """Collects tags, links and images, and checks that tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "source"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    assert not reader.open
    return reader


def test_render_page__escapes_and_folds() -> None:
    rows = [{"<b>": "<script>alert(1)</script>"}]
    html = render_page("a < b", [PageSection("s", "x & y", rows, folded=True)], facts={"n": "1"})
    reader = read(html)
    assert "script" not in [tag for tag, _ in reader.found]
    assert "details" in [tag for tag, _ in reader.found]
    assert "a &lt; b" in html
    assert "x &amp; y" in html
    assert "banner" not in html.split("</style>")[1]


def test_summarise_attacks__has_a_row_per_attack_with_limits(report) -> None:
    summary = pd.DataFrame(summarise_attacks(report.table.to_dict("records")))
    # Of either variable two read the release and one its bits; raw records are only compared with.
    sources = {"released": 2 * 2, "raw": 2, "bits": 2}
    assert summary["source"].value_counts().to_dict() == sources
    assert summary["accuracy"].str.fullmatch(r"[\d.]+ \([\d.]+ to [\d.]+\)").all()
    assert summary.columns[3] == "test records"
    assert "least squares" in set(summary["adversary"])


def test_format_number__and_limits() -> None:
    assert format_number(0.0) == "0"
    assert format_number(0.00123) == "0.0012"
    assert format_number(float("nan")) == "-"
    assert format_limits(0.5, float("nan"), 1.0) == "0.5"
    assert format_limits(1.0, 1.0, 1.0) == "1.000 (1.000 to 1.000)"
    assert format_limits(1 / 3, 1 / 3 - 1e-17, 1 / 3 + 1e-16) == "0.333 (0.333 to 0.334)"
    assert format_limits(6.7e6, 5e6, 8e6) == "6700000 (5000000 to 8000000)"
