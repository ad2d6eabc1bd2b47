"""A comparison of two tables, and the audit of a run, as text. Input is the JSON document."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.text import Text

from onefold.report.text import foreign, many

ROW_CHARS_MAX: Final = 200
CHANGE_CHARS_MAX: Final = 600
"""For a row that differs between two tables: each column has two values."""

FILES_SHOWN_MAX: Final = 20
FILE_CHARS_MAX: Final = 500
"""The longest line about a file."""

SIDES: Final = {"only_a": "only in A", "only_b": "only in B", "differing": "differs", "doubled": "doubled"}
"""The words for the kinds of differences between two tables."""
CELL_CHARS_MAX: Final = 60
SAME_CHARS: Final = 12
"""How many equal characters are shown before the first difference of two long texts."""

KINDS: Final = {
    "missing": "in the source, not published",
    "surplus": "published, not in the source",
    "twice": "counts more than once",
    "orphans": "a repeat without a first: it counts nowhere",
}


def compared(summary: Mapping[str, Any]) -> Text:
    rows = f"{summary['rows_a']:,} and {summary['rows_b']:,} rows"
    if summary["equal"]:
        return Text(f"equal: {summary['rows_a']:,} rows, fingerprint {summary['fingerprint_a']}", style="bold green")
    parts = [f"{summary['only_a']:,} only in A", f"{summary['only_b']:,} only in B"]
    parts += [f"{summary['differing']:,} keys with other content"] if summary["differing"] else []
    parts += [f"{many(summary['doubled'], 'key')} more often in one of them"] if summary.get("doubled") else []
    looked = f"{summary['ranges_differing']:,} of {summary['ranges']:,} ranges were looked at row by row"
    return Text(f"they differ: {', '.join(parts)}; {rows}, {looked}", style="bold red")


def samples(summary: Mapping[str, Any]) -> Iterator[Text]:
    for kind, rows in summary["shown"].items():
        side = SIDES.get(kind) or kind.replace("_", " ")
        yield from (foreign(f"  {side}: {row_text(row)}", CHANGE_CHARS_MAX) for row in rows)
        if summary[kind] > len(rows):
            yield Text(f"  {side}: and {summary[kind] - len(rows):,} more", style="dim")


def row_text(row: Mapping[str, Any]) -> str:
    """A row as text; for a pair that differs, the differences; for a doubled row, its counts.

    >>> row_text({"device": "a", "ts": 5, "body": None})
    'device a, ts 5, body null'
    >>> paid, back = {"status": "paid", "sum": 5}, {"status": "cancelled", "sum": None}
    >>> row_text({"id": 7, "differs_in": ["status", "sum"], "row_a": paid, "row_b": back})
    'id 7: status: paid -> cancelled, sum: 5 -> null'
    >>> row_text({"id": 7, "rows_a": 1, "rows_b": 3})
    'id 7: 1 in A, 3 in B'
    """
    a, b, columns = row.get("row_a"), row.get("row_b"), row.get("differs_in")
    if isinstance(a, Mapping) and isinstance(b, Mapping) and isinstance(columns, list):
        cells = (f"{name}: {' -> '.join(_apart(a.get(name), b.get(name)))}" for name in map(str, columns))
        return f"{_words(row, 'differs_in', 'row_a', 'row_b')}: {', '.join(cells)}"
    if "rows_a" in row and "rows_b" in row:
        return f"{_words(row, 'rows_a', 'rows_b')}: {row['rows_a']} in A, {row['rows_b']} in B"
    return _words(row)


def _apart(a: object, b: object) -> Iterator[str]:
    """Two values that differ; of long ones what stands around the place where they begin to.

    >>> [text[11:] for text in _apart("x" * 70 + "1", "x" * 70 + "2" * 49)]
    ['xxxx1', 'xxxx222222222222222222222222222222222222222222222222...']
    """
    texts = ["null" if value is None else str(value) for value in (a, b)]
    same = next((i for i, pair in enumerate(zip(*texts, strict=False)) if pair[0] != pair[1]), min(map(len, texts)))
    start = max(0, same - SAME_CHARS) if max(map(len, texts)) > CELL_CHARS_MAX else 0
    for text in texts:
        rest = text[start : start + CELL_CHARS_MAX]
        yield f"{'...' if start else ''}{rest}{'...' if start + CELL_CHARS_MAX < len(text) else ''}"


def _words(row: Mapping[str, Any], *but: str) -> str:
    row = {name: value for name, value in row.items() if name not in but}
    return ", ".join(f"{name} {'null' if value is None else value}" for name, value in row.items())


def audited(audit: Mapping[str, Any]) -> Iterator[Text]:
    if audit["agrees"]:
        same = f"{audit['source']:,} rows, fingerprint {audit['fingerprint_source']}"
        yield Text(f"source and sink agree: {same}", style="bold green")
    else:
        wrong = f"{audit['missing']:,} rows missing, {audit['surplus']:,} surplus, {audit['twice']:,} ids twice"
        yield Text(f"SOURCE AND SINK DO NOT AGREE: {wrong}", style="bold red")
    if audit["left_out"]:
        yield foreign(f"  not compared, by their types: {', '.join(audit['left_out'])}", ROW_CHARS_MAX)
    if audit["ids"] is not None:
        again = f", {audit['again']:,} of them again after their expiry (replays?)" if audit.get("again") else ""
        once = f"{audit['ids']:,} messages count{again or ('' if audit['twice'] else ' once')}"
        orphans, ruled, repeats = audit["orphans"], audit["orphans_by_rule"], f"{audit['repeats']:,} repeats"
        alone = [f"{orphans:,} have no first"] if orphans else []
        if ruled:
            alone.append(f"{ruled:,} lie where nothing is remembered: they may be new, and count nowhere")
        if audit.get("elsewhere"):
            alone.append(f"{audit['elsewhere']:,} have their first in earlier versions, which were not looked at")
        if alone:
            yield Text(f"  {once}; of {repeats} {' and '.join(alone)}", style="yellow" if orphans or ruled else "")
        else:
            yield Text(f"  {once}, and each of {repeats} has its first", style="yellow" if again else "")
    for kind, rows in audit["shown"].items():
        yield from (foreign(f"  {row_text(row)}: {KINDS[kind]}", ROW_CHARS_MAX) for row in rows)
        if audit[kind] > len(rows):
            yield Text(f"  and {audit[kind] - len(rows):,} more: {KINDS[kind]}", style="dim")


def files_read(manifest: Mapping[str, Any]) -> Iterator[Text]:
    """The independent count of a source's rows, and the files that could not be read or changed."""
    if manifest["not_counted"]:
        yield foreign(f"rows were not counted independently: {manifest['not_counted']}", ROW_CHARS_MAX)
    elif manifest["rows"] is not None:
        apart = [many(manifest[name], f"{name} line") for name in ("blank", "header") if manifest[name]]
        where = many(manifest["files"], "file")
        if "offsets" in manifest:
            where = many(manifest["partitions"], "partition")
            empty = manifest["offsets"] - manifest["rows"]
            apart = [f"{many(empty, 'offset')} without a message (compaction, transactions)"] if empty else []
        rows = ", ".join([f"{many(manifest['rows'], 'row')} in {where}", *apart])
        yield Text(f"counted without the reader: {rows}")
    if snapshot := manifest.get("snapshot"):
        yield foreign(
            f"read: version {snapshot['version']} of {snapshot['table']} ({snapshot['format']})", ROW_CHARS_MAX
        )
    for file in manifest["set_aside"][:FILES_SHOWN_MAX]:
        line = f"  set aside: {file['path']}, {file['size']:,} bytes: {file['trouble']}; its rows are unknown"
        yield Text(foreign(line, FILE_CHARS_MAX).plain, style="yellow")
    for line in manifest["changed"][:FILES_SHOWN_MAX]:
        yield Text(foreign(f"  changed during the run: {line}", FILE_CHARS_MAX).plain, style="yellow")
    more = sum(max(0, len(manifest[name]) - FILES_SHOWN_MAX) for name in ("set_aside", "changed"))
    if more:
        yield Text(f"  and {more:,} more files", style="dim")


def peer_line(document: dict[str, Any]) -> Text:
    moved = f"{document['bytes_up']:,} bytes up, {document['bytes_down']:,} down"
    cost = f"{many(document['rounds'], 'round trip')}, {moved}"
    if document["equal"]:
        return Text(f"equal: {many(document['rows'], 'row')}; {cost}", style="bold green")
    parts = f"{document['only_here']:,} only here, {document['only_there']:,} only there"
    both = f"{document['rows']:,} and {document['rows_peer']:,} rows"
    return Text(f"they differ: {parts}; {both}, {cost}", style="bold red")
