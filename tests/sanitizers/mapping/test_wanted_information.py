"""A bound that is wanted: kept, or refused with the number of records that it needs."""

from __future__ import annotations

import re

import numpy as np
import pytest

from privpipe import fit_privacy_mapping
from privpipe.errors import GuaranteeError, OptionError
from privpipe.protocols import Shard
from privpipe.sanitizers.mapping import METHOD
from tests.laws_of_records import RecordLaw, make_laws
from tests.sanitizers.mapping.solving.test_assurance import options

WANTED = 0.02


def fit(law: RecordLaw, n: int, **changes: object) -> float:
    shards = law.draw(n, np.random.default_rng(n))
    mapping = fit_privacy_mapping(shards, options(law, gap=1e-3, **changes))  # type: ignore[arg-type]
    return float(mapping.guarantee.number or 0.0)


def test_fit__says_how_many_records_the_wanted_bound_needs_and_they_do() -> None:
    law = make_laws()["random"]
    with pytest.raises(GuaranteeError, match=r"wanted_information is 0\.02") as error:
        fit(law, 4_000, wanted_information=WANTED)
    assert error.value.code == "bound-above-wanted"
    needed = int(re.findall(r"About ([\d,]+)", str(error.value.remedy))[0].replace(",", ""))
    assert 4_000 < needed < 400_000
    assert fit(law, 3 * needed, wanted_information=WANTED) <= WANTED
    assert fit(law, needed // 3) > WANTED


def test_fit__says_that_no_number_of_records_suffices() -> None:
    with pytest.raises(GuaranteeError, match="wanted_information") as error:
        fit(make_laws()["sharp"], 50_000, wanted_information=0.001)
    assert "no number of records suffices" in str(error.value.remedy)


@pytest.mark.parametrize(("name", "wanted"), [("issue: 288 profiles", 0.012), ("random", 0.01)])
def test_fit__forecasts_with_the_mapping_of_more_records(name: str, wanted: float) -> None:
    """2,000 records merge more than 60,000 do, which keep to the bound."""
    with pytest.raises(GuaranteeError, match="wanted_information") as error:
        fit(make_laws()[name], 2_000, wanted_information=wanted)
    assert str(error.value.remedy).startswith("About ")


def test_forecast__says_it_before_the_run() -> None:
    law, rng = make_laws()["random"], np.random.default_rng(1)
    place = rng.choice(law.joint.size, 3_000, p=law.joint.ravel())
    value, symbol = np.divmod(place, law.joint.shape[1])
    shard = Shard(
        np.empty((3_000, 0)),
        confidential=value[:, None].astype(float),
        attributes=law.codes[symbol],
    )

    class Few:
        is_whole, held_out, has_subjects, n_training = True, 0.0, False, 0

        def read_training(self) -> list[Shard]:
            return [shard]

        def read_attributes(self) -> np.ndarray:
            return np.asarray(shard.attributes)

    assert METHOD.forecast is not None
    within = METHOD.forecast(Few(), options(law, wanted_information=0.03))
    assert "A bound of 0.03 nats needs about" in within.describe()
    beyond = METHOD.forecast(Few(), options(law, wanted_information=1e-4))
    assert "out of reach" in beyond.describe()


def test_check_programme__wants_records_that_judge() -> None:
    with pytest.raises(OptionError, match="held_out is 0"):
        fit(make_laws()["random"], 2_000, held_out=0.0, wanted_information=0.06)
