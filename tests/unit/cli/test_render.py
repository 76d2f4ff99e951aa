import io

from rich.console import Console

from hpcflow.cli.render import ProgressBar


def test_the_bar_shows_the_figures_and_gives_the_terminal_back() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, markup=False, highlight=False)
    bar = ProgressBar(console)
    bar.show("generate [x]", step=5, steps=10, figures="5/10  reward 0.250")
    bar.line("step 5: [bold]kept[/bold] as it is")
    bar.close()
    text = screen.getvalue()
    assert "generate [x]" in text
    assert "5/10  reward 0.250" in text
    assert "step 5: [bold]kept[/bold] as it is\n" in text
    hidden, shown = "\x1b[?25l", "\x1b[?25h"
    assert text.rindex(shown) > text.rindex(hidden)
