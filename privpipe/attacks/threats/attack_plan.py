"""Which adversary is set on which variable of which source, and the levels of their intervals."""

from __future__ import annotations

from privpipe.attacks.adversaries.attack_options import AttackOptions, choose_adversaries
from privpipe.attacks.adversaries.evidence import Evidence
from privpipe.attacks.threats.group_inference import GROUPS, RAW_GROUPS, list_sizes, name_size
from privpipe.attacks.threats.verdicts.detectable_effect import count_compared
from privpipe.attacks.threats.verdicts.outcomes import Attack, is_of_release


def plan_attacks(evidence: Evidence, options: AttackOptions) -> tuple[Attack, ...]:
    """Every adversary that suits a variable, against each variable of each source.

    Further readings of the release are for those who make something of them; see `readers`. Where
    records have groups, and a variable is one of whole groups, several records of a group are
    read together; see `group_inference`. So are those of the raw records, where they are given: who
    learns nothing of them could not have found it in the release.
    """
    single = tuple(
        Attack(column.name, "classes" if column.is_categorical else "numbers", source, name)
        for source in evidence.sources
        for column in evidence.columns
        for name in choose_adversaries(source, column.is_categorical, options)
    )
    together = tuple(
        Attack(column.name, "classes", source, name_size(size))
        for source in (GROUPS, *([RAW_GROUPS] if "raw" in evidence.sources else []))
        for position, column in enumerate(evidence.columns)
        for size in _choose_sizes(source, list_sizes(evidence, position, options))
    )
    return single + together


def _choose_sizes(source: str, sizes: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """Of the raw records, whose telling is no question, the fewest and the most."""
    return sizes if source == GROUPS else tuple(dict.fromkeys((*sizes[:1], *sizes[-1:])))


def plan_levels(evidence: Evidence, position: int, options: AttackOptions) -> tuple[float, ...]:
    """Levels of the intervals of a variable, the strictest first."""
    column = evidence.columns[position]
    planned = [
        attack
        for attack in plan_attacks(evidence, options)
        if attack.target == column.name and is_of_release(attack.source)
    ]
    kind = "classes" if column.is_categorical else "numbers"
    n_compared = count_compared(len(planned), kind, options)
    return options.plan_levels(n_compared, len(evidence.columns))
