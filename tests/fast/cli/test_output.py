"""What strangers wrote does nothing to the terminal that shows it, and no password is repeated."""

import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from onefold.cli.main import main
from onefold.cli.output import People, json_text, people
from onefold.producers.topic import Topics
from onefold.text import printable, without_logins

CLEAR = "\x1b[2J\x1b]0;title\x07\x9b31m\u202eevil\x7f"
FOREIGN = st.text(st.characters() | st.sampled_from(CLEAR), max_size=40)


def harmless(text):
    """No control but ends of lines; no escape, no change of direction."""
    return all(sign == "\n" or printable(sign, keep="") == sign for sign in text)


@given(FOREIGN)
def test_nothing_that_is_printed_for_people_is_a_command_of_the_terminal(foreign):
    table = Table("name")
    table.add_row(Text(foreign))
    console = People(width=80)
    with console.capture() as shown:
        console.print(foreign, markup=False)
        console.print(table)
    assert harmless(shown.get().replace("\t", ""))


def test_colours_of_our_own_are_still_colours():
    console = People(width=80, force_terminal=True, color_system="standard")
    with console.capture() as shown:
        console.print("[red]a[/red]")
    assert shown.get() == "\x1b[31ma\x1b[0m\n"


@given(st.recursive(FOREIGN | st.integers() | st.none(), lambda inner: st.lists(inner, max_size=3), max_leaves=9))
def test_json_shows_no_control_and_means_the_same(document):
    text = json_text({"a": document})
    assert harmless(text)
    assert json.loads(text) == {"a": document}


@pytest.fixture
def said(capfd):
    def run(*words):
        code = main([str(word) for word in words])
        out, err = capfd.readouterr()
        return code, out, err

    return run


def test_log_tail_shows_no_escape_of_a_name_or_a_payload(tmp_path, said, monkeypatch):
    monkeypatch.setattr(people, "_width", 200)  # room for the whole name, escapes spelled out
    with Topics(tmp_path) as topics:
        topics.topic("t").publish(f"p{CLEAR}", [(0, f"x\n{CLEAR}".encode())])
        topics.topic("t").publish_keyed(f"k{CLEAR}", b"")
    for words in (["tail"], ["tail", "--json"], ["producers"], ["producers", "--json"]):
        code, out, err = said("log", words[0], tmp_path / "t", *words[1:])
        assert (code, harmless(out + err)) == (0, True)
        assert "evil" in out + err
    assert len(said("log", "tail", tmp_path / "t")[2].splitlines()) == 2


@pytest.mark.parametrize("text", [f'a = "{CLEAR}', f'[source]\n"{CLEAR}" = 1', f"[judge]\nfloor = {json.dumps(CLEAR)}"])
def test_an_error_in_a_toml_file_shows_no_escape_of_it(tmp_path, said, text):
    (tmp_path / "p.toml").write_text(text)
    code, out, err = said("run", tmp_path / "p.toml")
    assert (code, out, harmless(err)) == (2, "", True)


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_publish_never_repeats_the_password_of_an_address(tmp_path, said, form):
    (tmp_path / "f").write_bytes(b"x\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        to = f"http://user:open-sesame@{address}"
        code, out, err = said("publish", tmp_path / "f", "--topic", "t", "--to", to, "--retry-s", "0", *form)
    assert code == 3
    assert "open-sesame" not in out + err
    assert address in err


@pytest.mark.parametrize(
    "store", ["redis://me:open-sesame@127.0.0.1:1/x", "postgresql://me:open-sesame@127.0.0.1:1/x?y=z"]
)
def test_no_command_repeats_the_password_of_a_store(said, store):
    code, out, err = said("tokens", "ls", "--tokens", store, "--store", store)
    assert code in (2, 3)
    assert "open-sesame" not in out + err


def test_a_password_is_hidden_however_long_it_is():
    assert (
        without_logins(f"at http://{'u' * 300}:{'p' * 5_000}@h/x, later")
        == f"at http://{'u' * 300}:(hidden)@h/x, later"
    )


def test_an_address_without_a_password_stays_as_it_is():
    for text in ("http://host:80/a@b", "ws://h:1/topics/t/ws?name=a@b:c", "mail me@host: now", "redis://me@host:1"):
        assert without_logins(text) == text
