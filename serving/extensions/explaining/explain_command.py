"""Implement `freshet explain`: show how a score was computed, for one generation or two side by side."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshet_serving.processor.errors import BadInput, first_of, nearest_file, printable
from freshet_serving.serving.commands.delta_commands import DEFAULT_ADMIN, AdminOption

if TYPE_CHECKING:
    from rich.table import Table

MAX_REQUEST_NBYTES = 4 << 20
MOST_IDS = 8
"""Maximum number of a feature's ids that are printed; --json has all."""
MOST_ADDED = 8
"""Maximum number of features that are printed with what they add; --json has all."""
MOST_EVENTS = 16
"""Maximum number of a history's events that are printed, those of the largest changes; --json has all."""
MOST_NUMBERS = 8
"""Maximum number of an output's numbers that are printed, such as those of a user's vector; --json has all."""
STAGES = (
    ("bind", "bind"),
    ("look_up", "look up"),
    ("pool", "pool"),
    ("open", "open the executable"),
    ("execute", "execute"),
)


def explain(
    model: Annotated[str, typer.Argument(help="The model.")],
    request: Annotated[
        str, typer.Option(help="File with a :predict request, inputs or instances; - reads stdin.")
    ] = "",
    request_id: Annotated[str, typer.Option(help="x-request-id of a recorded request, instead of --request.")] = "",
    item: Annotated[
        str | None, typer.Option(help="Id of an item: explain its place among the best items of the request.")
    ] = None,
    row: Annotated[int, typer.Option(help="Row (candidate) of the request.")] = 0,
    version: Annotated[int | None, typer.Option(help="Version number. [the model's default]")] = None,
    label: Annotated[str | None, typer.Option(help="Label of the version, instead of --version.")] = None,
    generation: Annotated[str | None, typer.Option(help="Generation to explain, such as 1.16.")] = None,
    against: Annotated[str | None, typer.Option(help="Second generation to compare with.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the server's reply as JSON.")] = False,
    admin: AdminOption = DEFAULT_ADMIN,
) -> None:
    """Explains one score: rows and their origin, executable, timings, and the changes that moved it."""
    from freshet_serving.serving.commands.admin_client import AdminClient, quoted

    if bool(request) == bool(request_id):
        raise BadInput("explain: expected either --request or --request-id")
    asked: dict[str, Any] = {"request_id": request_id} if request_id else _request(request)
    options = {"version": version, "label": label, "generation": generation, "against": against, "item": item}
    asked |= {"row": row, **{key: value for key, value in options.items() if value is not None}}
    answer = AdminClient(admin).send_json("POST", f"/admin/models/{quoted(model)}/explain", asked)
    if as_json:
        print(json.dumps(answer, indent=1))
    else:
        show_explanation(answer)


def _request(name: str) -> dict[str, Any]:
    try:
        data = sys.stdin.buffer.read(MAX_REQUEST_NBYTES + 1) if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise BadInput(f"{name}: {error.strerror}{nearest_file(name)}") from None
    if len(data) > MAX_REQUEST_NBYTES:
        raise BadInput(f"--request: expected at most {MAX_REQUEST_NBYTES} bytes, got more")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"--request: {name}: expected JSON, got: {error}") from None
    if not isinstance(document, dict):
        raise BadInput("--request: expected a JSON object with inputs or instances")
    return {key: document[key] for key in ("inputs", "instances", "signature_name") if key in document}


def show_explanation(answer: dict[str, Any]) -> None:
    """Print an explanation: the request, the rows that each feature read, and the changes that moved the score."""
    from rich.text import Text

    from freshet_serving.compiler.progress import output

    console = output()
    sides = answer["sides"]
    console.print(Text(f"{answer['model']}, row {answer['row']} of {answer['rows']}"))
    if recorded := answer.get("recorded"):
        where = (
            f"request {printable(recorded['request_id'])}, answered at {recorded['time']} by {recorded['generation']}"
        )
        console.print(Text(f"{where}: {_scores(recorded['outputs'])}"))
    for side in sides:
        served = "" if side["served"] else " (not served now)"
        computed = f"{side['executable']['computes']}, bucket {side['executable']['bucket']}, {side['computed_by']}"
        console.print(Text(f"{side['generation']}{served}: {_scores(side['outputs'])}   {computed}"))
        console.print(
            Text("   " + ", ".join(f"{name} {side['timings_ms'][stage]:.3g} ms" for stage, name in STAGES), style="dim")
        )
    for side in sides:
        if "item" in side:
            console.print(Text(_item_line(side)))
            if side["item"].get("nearest"):
                console.print(_nearest(side))
    console.print(_features(sides))
    console.print(_additions(sides[0]))
    for name in dict.fromkeys(name for side in sides for name in side.get("histories", ())):
        console.print(_events(name, sides))
    if answer.get("moved"):
        console.print(_moved(answer))
    elif len(sides) > 1:
        console.print(Text(answer.get("note", "no row that the request reads differs")))


def _item_line(side: dict[str, Any]) -> str:
    """Describe an item's place, or what leaves it out, and the parts of its score."""
    item = side["item"]
    about = f"item {printable(item['id'])} in {side['generation']}"
    about += f": place {item['place']} of {item['ranked']}" if item["place"] is not None else ": not placed"
    if "score" in item:
        parts = ", ".join(f"{name} {_number(value)}" for name, value in item["parts"].items())
        about += f", score {_number(item['score'])} of {parts}"
    if "item_generation" in item:
        about += f"; items' vectors are of {item['item_generation']}"
    about += f"; row {_origin(item['row'])}" + (f", record {_origin(item['record'])}" if "record" in item else "")
    return "\n".join([about, *(f"   {printable(why)}" for why in (*item["why_not"], item.get("note", "")) if why)])


def _nearest(side: dict[str, Any]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(f"nearest events in {side['generation']}", overflow="fold")
    for title in ("cosine", "product"):
        table.add_column(title, justify="right")
    for event in side["item"]["nearest"]:
        name = Text(f"{event['input']} {event['place']}: {printable(event['id'])}")
        table.add_row(name, _number(event["cosine"]), _number(event["product"]))
    return table


def _additions(side: dict[str, Any]) -> Table:
    """Return the features whose rows change the score most."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("adds most", overflow="fold")
    table.add_column(f"to the score in {side['generation']}", justify="right")
    added = {name: read["score_change"] for name, read in side["inputs"].items() if read.get("score_change")}
    for name in sorted(added, key=lambda name: -abs(added[name]))[:MOST_ADDED]:
        table.add_row(Text(f"feature {name}"), f"{added[name]:+.6g}")
    return table


def _features(sides: list[dict[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("feature", "id", *(f"row in {side['generation']}" for side in sides)):
        table.add_column(title, overflow="fold")
    names = dict.fromkeys(name for side in sides for name in side["inputs"])
    for name in names:
        reads = [side["inputs"].get(name, {}) for side in sides]
        first = first_of(read for read in reads if read)
        about = f"{name} ({first['kind']}" + (
            f", {first['combiner']})" if "ids" in first and len(first["ids"]) > 1 else ")"
        )
        every = [read.get("ids", []) for read in reads]
        if not any(every):
            cells = [_numbers(read) for read in reads]
            table.add_row(Text(about), Text(cells[0][0]), *(Text(fed) for _, fed in cells))
            continue
        longest = max(every, key=len)
        for n, read in enumerate(longest[:MOST_IDS]):
            shown = [_row(ids[n]) if n < len(ids) else "" for ids in every]
            table.add_row(
                Text(about if n == 0 else ""), Text(printable(read["id"])), *(_marked(cell, shown) for cell in shown)
            )
        if len(longest) > MOST_IDS:
            table.add_row("", Text(f"and {len(longest) - MOST_IDS} more", style="dim"))
        if first["length"] > len(longest):
            table.add_row("", Text(f"{first['length']} values, the others exceed its max_length", style="dim"))
    return table


def _events(name: str, sides: list[dict[str, Any]]) -> Table:
    """Return the table of a history: its newest events, and the change of the score by each."""
    from rich.table import Table
    from rich.text import Text

    histories = [side.get("histories", {}).get(name) for side in sides]
    first = first_of(each for each in histories if each)
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(f"{name}, {first['events']} events", overflow="fold")
    for side in sides:
        table.add_column(f"score by the event in {side['generation']}", justify="right")
    by_place: dict[int, list[dict[str, Any] | None]] = {}
    for n, each in enumerate(histories):
        for event in each["newest"] if each else ():
            by_place.setdefault(event["place"], [None] * len(histories))[n] = event
    strongest = sorted(by_place, key=lambda place: -max(abs(e["score_change"] or 0) for e in by_place[place] if e))
    for place in sorted(strongest[:MOST_EVENTS]):
        events = by_place[place]
        event = first_of(e for e in events if e)
        ids = ", ".join(printable(read["id"]) for reads in event["ids"].values() for read in reads[:1])
        ids += "".join(f", {_number(value)}" for value in event.get("floats", {}).values())
        changes = ("" if e is None else _signed(e["score_change"]) for e in events)
        table.add_row(Text(f"{place}: {ids}"), *map(Text, changes))
    if len(by_place) > MOST_EVENTS:
        table.add_row(Text(f"and {len(by_place) - MOST_EVENTS} events of smaller changes", style="dim"))
    if first["left_out"]:
        table.add_row(Text(f"and the {first['left_out']} oldest, which were not computed", style="dim"))
    return table


def _marked(cell: str, beside: list[str]) -> Any:
    """Return a cell, in bold if the sides differ."""
    from rich.text import Text

    return Text(cell, style="bold" if len(set(beside)) > 1 else "")


def _row(read: dict[str, Any]) -> str:
    return f"{_origin(read)}, norm {_number(read['norm'])}"


def _origin(read: dict[str, Any]) -> str:
    if read["found"] == "default":
        why = read["why"] if read.get("step") is None else f"{read['why']} by step {read['step']}"
        return f"default ({why})"
    if read["from"] == "version":
        return "version"
    if read["step"] is None:
        return f"delta of step {read['until']} or before"
    return f"{read['from']} {read['step']}"


def _numbers(read: dict[str, Any]) -> tuple[str, str]:
    """Return a float feature's cells: the value that was sent, and the value that the dense graph received."""
    if "fed" not in read:
        return "no ids" if "ids" in read else "", ""
    if "value" in read:
        return _number(read["value"]), f"fed {_number(read['fed'])}"
    return f"{read['width']} numbers", "fed " + " ".join(map(_number, read["fed"][:4])) + (
        " ..." if read["width"] > 4 else ""
    )


def _moved(answer: dict[str, Any]) -> Table:
    from rich.table import Table
    from rich.text import Text

    first, second = (side["generation"] for side in answer["sides"])
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(f"moved between {second} and {first}")
    table.add_column("score", justify="right")
    for moved in answer["moved"]:
        table.add_row(Text(moved["what"]), _signed(moved["score_change"]))
    if answer["moved_left_out"]:
        table.add_row(f"and {answer['moved_left_out']} smaller changes", "")
    for name, columns in answer["change"].items():
        table.add_row(Text(f"all together, {name}", style="bold"), " ".join(map(_signed, columns)))
    return table


def _scores(outputs: dict[str, Any]) -> str:
    shown = {
        name: (*map(_number, columns[:MOST_NUMBERS]), *["..."][: len(columns) > MOST_NUMBERS])
        for name, columns in outputs.items()
    }
    return ", ".join(f"{name} {' '.join(numbers)}" for name, numbers in shown.items())


def _number(value: float | None) -> str:
    """Format a number; None stands for NaN, which JSON does not have."""
    return "nan" if value is None else f"{value:.6g}"


def _signed(value: float | None) -> str:
    return "nan" if value is None else f"{value:+.6g}"
