import io
from dataclasses import replace

from rich.console import Console

from hpcflow.cli.render import ProgressBar, plan_text
from tests.support.plans import a_plan


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


def test_warnings_of_a_plan_stand_below_its_roles() -> None:
    quiet = plan_text(a_plan(on_gpu=True))
    warned = plan_text(replace(a_plan(on_gpu=True), warnings=("a set straddles", "[b]another[/b]")))
    added = "warning: a set straddles\nwarning: [b]another[/b]\n"
    assert warned == quiet.replace("weights: actor", f"{added}weights: actor")
