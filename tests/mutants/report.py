"""The page of what was run: by group how many mutants were noticed, and every one that was not, with the reason."""

from __future__ import annotations

from tests.mutants.operators import mutants
from tests.mutants.slot import HUNG, KILLED, SURVIVED
from tests.mutants.subjects import ROOT, equivalent, modules

HEAD = """\
# Mutants

Small changes of the code, one at a time (`make mutants`): a bound off by one, a condition turned round or half of it
dropped, a guard, a call or an assignment left out, a result lost, an error not dealt with. A mutant is killed when a
test fails, of the module's own or of those beside them, and when it hangs. One that computes the same as the module, or
only slower, no test can kill: those are equivalent, each with its reason, read by a person.
"""
COLUMNS = (
    "| | modules | mutants there are | run | killed | hung | survived | of them equivalent | survivors of the others |"
)


def page(kept: dict[str, dict[str, dict]]) -> tuple[str, float]:
    """The page, and the largest share of a group that survived, equivalent ones left out."""
    lines = [HEAD, COLUMNS, "|---|" + "---:|" * 8]
    told: list[str] = []
    worst, sums = 0.0, [0] * 7
    for group, names in modules().items():
        counts = [len(names), 0, 0, 0, 0, 0, 0]
        for module in names:
            there = {m.name: m for m in mutants((ROOT / module).read_text())}
            # What has been rewritten since is another program.
            records = {n: r for n, r in kept.get(module, {}).items() if n in there and r["scope"] == there[n].scope}
            outcomes = [record["outcome"] for record in records.values()]
            survivors = sorted((there[n] for n, r in records.items() if r["outcome"] == SURVIVED), key=lambda m: m.line)
            reasons = [equivalent().get((module, mutant.name), "") for mutant in survivors]
            found = (len(there), len(records), *map(outcomes.count, (KILLED, HUNG, SURVIVED)), sum(map(bool, reasons)))
            counts[1:] = [a + b for a, b in zip(counts[1:], found)]
            told += [
                f"| {module}:{mutant.line} | `{mutant.name.replace('|', chr(92) + '|')}` | {why or '**open**'} |"
                for mutant, why in zip(survivors, reasons)
            ]
        sums = [a + b for a, b in zip(sums, counts)]
        worst = max(worst, share(counts))
        lines.append(row(group, counts))
    lines += [
        row("all", sums),
        "",
        "## Survivors",
        "",
        "| where | change | why no test kills it |",
        "|---|---|---|",
        *told,
    ]
    return "\n".join(lines) + "\n", worst


def share(counts: list[int]) -> float:
    """Survivors that are not equivalent, of all that are not."""
    _, _, ran, _, _, survived, same = counts
    return (survived - same) / max(1, ran - same)


def row(name: str, counts: list[int]) -> str:
    return f"| {name} | {' | '.join(map('{:,}'.format, counts))} | {share(counts):.1%} |"
