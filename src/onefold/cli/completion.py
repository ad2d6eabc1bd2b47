"""``onefold completion``: TAB completion for shells."""

from typing import Annotated, Literal

from typer import Argument
from typer.completion import get_completion_script  # type: ignore[attr-defined] # it has no __all__

from onefold.cli.main import COMPLETE


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Argument(help="Your shell.")]) -> None:
    """Print a script that makes the TAB key complete commands, options and their values.

    bash: eval "$(onefold completion bash)" in ~/.bashrc. zsh: the same with zsh in ~/.zshrc, below compinit. fish:
    onefold completion fish > ~/.config/fish/completions/onefold.fish
    """
    print(get_completion_script(prog_name="onefold", complete_var=COMPLETE, shell=shell))
