"""What the site has beside the pages of docs/: the README in front, and the reference, made from the code."""

import ast
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PACKAGES = ("onefold", "onefold.spark", "onefold.outbox", "onefold.reconcile", "onefold.lorawan", "onefold.testing")
"""What is public, as tests/fast/test_public.py has it."""
FIRST = {
    "onefold.spark": ("judge_ids", "judge_producers", "judge_chains", "judge_receptions", "diff", "audit", "explain"),
    "onefold.outbox": ("Endpoint", "Out", "Message", "Retry", "Desk", "DeskApp"),
    "onefold.reconcile": ("reconcile", "dial", "beside", "open_records", "record", "ReconcileServer"),
    "onefold.lorawan": ("parse", "NetworkServer", "Judged", "Stations", "Counters", "decide"),
}
"""What most people look for; the other names follow, functions before classes."""
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
}
"""Pages of the root, and where the site has them."""
NOTEBOOK = "examples/duplicates.ipynb"


def on_config(config: MkDocsConfig) -> None:
    """The decisions, each a page below their list."""
    decisions = [f"adr/{path.name}" for path in sorted((ROOT / "docs" / "adr").glob("0*.md"))]
    works = next(part["How it works"] for part in config.nav or [] if "How it works" in part)
    works[works.index("adr/README.md")] = {"Decisions": ["adr/README.md", *decisions]}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    # The README of docs/ would be the front page: that is the README of the root.
    situations = files.src_uris["README.md"]
    situations.dest_uri = situations.url = "situations.html"
    made = {page: (ROOT / name).read_text(encoding="utf-8") for name, page in PAGES.items()}
    made |= {"reference/commands.md": commands(), "reference/pipeline.md": pipeline()}
    made |= {f"reference/{package}.md": api(package) for package in PACKAGES}
    made |= dict(notebook(json.loads((ROOT / NOTEBOOK).read_text(encoding="utf-8"))))
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def notebook(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A notebook as a page, and its pictures."""
    blocks = []
    for number, cell in enumerate(document["cells"]):
        source = "".join(cell["source"])
        blocks.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
            if "image/svg+xml" in data:
                yield f"notebook-{number}.svg", (picture := data["image/svg+xml"])
                (seen,) = re.findall(r"<desc[^>]*>(.*?)</desc>", picture)
                blocks.append(f"![{seen}](notebook-{number}.svg)")
            else:
                blocks.append(f"```text\n{data.get('text/plain') or ''.join(output['text']).rstrip()}\n```")
    yield "notebook.md", "\n\n".join(blocks)


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Links as they are in the repository lead to where the site has the page; to a file that it lacks, nowhere."""
    source = next((name for name, path in PAGES.items() if path == page.file.src_uri), f"docs/{page.file.src_uri}")
    up = "../" * page.file.src_uri.count("/")

    def led(match: re.Match[str]) -> str:
        text, target, anchor = match["text"], match["target"], match["anchor"] or ""
        path = (ROOT / source).parent.joinpath(target).resolve()
        if not path.is_relative_to(ROOT) or path.is_relative_to(ROOT / "docs" / "reference"):
            return match[0]
        name = path.relative_to(ROOT).as_posix()
        if path.is_dir() and (path / "README.md").exists():
            name += "/README.md"
        if page := {**PAGES, NOTEBOOK: "notebook.md"}.get(name):
            return f"[{text}]({up}{page}{anchor})"
        if name.startswith("docs/"):
            return f"[{text}]({up}{name.removeprefix('docs/')}{anchor})"
        return text if "`" in text else f"{text} (`{name}`)"

    return re.sub(r"\[(?P<text>[^\]]+)\]\((?P<target>(?!\w+:)[^)\s#]+)(?P<anchor>#[^)]*)?\)", led, markdown)


# --- the commands ----------------------------------------------------------------------------------------------------


def commands() -> str:
    from onefold.cli.main import COMMANDS, EXAMPLES, FRONT_DOOR, GROUPS, SECTIONS

    lines = ["# Commands", "", "As `--help` has them. Which one fits which rows:", "", "```text", FRONT_DOOR, "```"]
    for section, names in SECTIONS.items():
        lines += ["", f"## {section}"]
        for full in (full for name in names for full in COMMANDS if full.split(" ")[0] == name and full not in GROUPS):
            lines += ["", f"### onefold {full}", "", *command(full), "", "```sh", f"onefold {EXAMPLES[full]}", "```"]
    return "\n".join(lines)


def command(full: str) -> Iterator[str]:
    """What it does, how it is called, its arguments and options."""
    import typer

    from onefold.cli.main import app

    context = typer.Context(typer.main.get_command(app), info_name="onefold")
    for word in full.split(" "):
        _, found, _ = context.command.resolve_command(context, [word])
        context = typer.Context(found, info_name=word, parent=context)
    for paragraph in inspect.cleandoc(context.command.help or "").split("\n\n"):
        told = paragraph.removeprefix("\b\n")  # the mark of a paragraph whose lines stay as they are
        yield from (literal(told) if told == paragraph else f"```text\n{told}\n```", "")
    yield from ("", "```text", context.command.get_usage(context).removeprefix("Usage: ").strip(), "```")
    panel = None
    for param in context.command.get_params(context):
        if (record := param.get_help_record(context)) is None or "--help" in param.opts:
            continue
        if (now := getattr(param, "rich_help_panel", None)) != panel:
            panel = now
            yield from ("", f"*{panel}*" if panel else "*Options*")
        yield from ("", f"`{record[0]}`", "", f":   {literal(record[1])}")


def literal(text: str) -> str:
    """Words of a terminal, of which no character is markup."""
    return re.sub(r"([\\*_<>\[\]|])", r"\\\1", text)


# --- the TOML --------------------------------------------------------------------------------------------------------


def pipeline() -> str:
    from onefold.settings import Settings

    schema = Settings.model_json_schema()
    lines = [
        "# pipeline.toml",
        "",
        "`onefold init` writes this file, with every key and what stands here; `onefold init --schema` prints its JSON "
        "Schema for an editor. A key that is not known is refused. The environment overrides the file: "
        "`ONEFOLD_JUDGE__FLOOR=first` is `judge.floor`, with two underscores.",
    ]
    tables = list(schema["properties"].items())
    while tables:
        table, place = tables.pop(0)
        kind = schema["$defs"][(place.get("$ref") or place["allOf"][0]["$ref"]).rpartition("/")[2]]
        lines += ["", f"## [{table}]", "", kind["description"]]
        for key, value in kind["properties"].items():
            if "$ref" in value or "allOf" in value:
                tables.insert(0, (f"{table}.{key}", value))
                continue
            default = f"default `{json.dumps(value['default'])}`" if "default" in value else "must be given"
            lines += ["", f"### {table}.{key}", "", f"*{form(value)}; {default}*", "", literal(value["description"])]
    return "\n".join(lines)


def form(value: dict[str, Any]) -> str:
    """What a key takes, in words."""
    if "enum" in value:
        return " or ".join(f"`{json.dumps(word)}`" for word in value["enum"])
    if "anyOf" in value:
        return " or ".join(form(part) for part in value["anyOf"] if part.get("type") != "null")
    if value.get("type") == "array":
        return f"a list of {form(value['items'])}"
    words = {
        "string": "text",
        "integer": "a whole number",
        "number": "a number",
        "boolean": "`true` or `false`",
        "object": "a table",
    }
    return words[value["type"]] + (f" of at least {value['minimum']}" if "minimum" in value else "")


# --- Python ----------------------------------------------------------------------------------------------------------


def listed(package: str) -> list[str]:
    """The public names of a package, in the order of its `__all__`; read, not imported."""
    path = ROOT / "src" / package.replace(".", "/") / "__init__.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return list(ast.literal_eval(node.value))
    raise AssertionError(package)


def api(package: str) -> str:
    lines = [f"# {package}"]
    rest = sorted(listed(package), key=lambda name: (not name[0].islower(), name.isupper()))
    for name in dict.fromkeys((*FIRST.get(package, ()), *rest)):
        if not name.startswith("__"):
            lines += ["", f"::: {package}.{name}"]
    return "\n".join(lines)


def on_post_build(config: MkDocsConfig) -> None:
    """The theme's script can load what old browsers, or diagrams, need from elsewhere: not here."""
    for path in Path(config.site_dir).glob("assets/javascripts/bundle.*.js"):
        path.write_text(re.sub(r"https://unpkg\.com/[^\"]*", "", path.read_text(encoding="utf-8")), encoding="utf-8")


class Docstrings(griffe.Extension):
    """Docstrings are text with ``code`` and examples at a prompt, which Markdown would take for quotations."""

    homes: ClassVar = {name: f"{package}.{name}" for package in reversed(PACKAGES) for name in listed(package)}
    """Of each public name where the reference has it."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is None:
            return
        text = re.sub(r"(?<!`)`([\w.]+)`(?!`)", self.linked, obj.docstring.value)
        text = "\n\n".join(map(self.arguments, text.split("\n\n")))
        prompt = r"^>>> .*?(?=\n\n|\Z)"
        obj.docstring.value = re.sub(prompt, lambda match: f"```pycon\n{match[0]}\n```", text, flags=re.M | re.S)

    def arguments(self, paragraph: str) -> str:
        """A paragraph that goes from argument to argument is a list of them."""
        if not re.match(r"``\w+``[:,]\s", paragraph):
            return paragraph
        return "- " + re.sub(r"(?<=[.;])\s+(?=``\w+``[:,]\s)", "\n- ", paragraph)

    def linked(self, match: re.Match[str]) -> str:
        home = self.homes.get(match[1].rpartition(".")[2])
        return f"[`{match[1]}`][{home}]" if home else match[0]
