"""The page of stochattn-report shows all results, loads no other files, renders in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from matplotlib import image as pictures

import evaluated
import runner
import sizes
from fairseq_stochattn.analysis.run_folder import find_checkpoint, read_training
from fairseq_stochattn.analysis.training_log import read_log
from fairseq_stochattn.commands import report as report_command
from fairseq_stochattn.compat import UsageError

_VOID = {"meta", "link", "br", "img", "hr", "input"}


class Outline(HTMLParser):
    """Parses a page into elements and texts, and fails if an element is not closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())

    def all(self, tag: str) -> list[dict]:
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module")
def run(translation_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with a log, a checkpoint and an evaluation."""
    folder = tmp_path_factory.mktemp("my <run>")
    flags = ("--arch", "transformer_babn", *sizes.TRANSFORMER, "--criterion", "elbo")
    log = ("--log-file", folder / "train.log")
    runner.train(translation_data, folder, *flags, "--max-epoch", 2, *log)
    found = evaluated.evaluation(data=str(translation_data))
    (folder / "evaluation.json").write_text(json.dumps(found))
    return folder


def report(*args: object) -> str:
    """Run stochattn-report and return the page that it writes."""
    assert report_command.main([str(x) for x in (*args, "--cpu")]) == 0
    output = Path(args[args.index("--output") + 1]) if "--output" in args else args[0]
    return (output if output.is_file() else output / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return report(run, "--samples", 4)


def test_page_has_all_sections_and_figures(page: str, run: Path) -> None:
    outline = Outline(page)
    headings = ["Configuration", "Training", "Metrics", "Attention", "Least certain examples"]
    assert [
        x for x in outline.texts if x in headings and x
    ] == headings * 2  # once as links, once as headings
    assert outline.all("html") == [{"lang": "en"}]
    assert len(outline.all("h1")) == 1
    for expected in (
        "transformer_babn",
        "babn",
        "elbo",
        "81.25",
        "half past two",
        "✗\xa0wrong",
        "✓\xa0right",
    ):
        assert expected in outline.texts, expected
    assert escape(f"transformer_babn: {run.name}") in page
    log = read_log([run / "train.log"])
    descriptions = [x["aria-label"] for x in outline.all("div") if x.get("role") == "img"]
    for name in log.losses():
        last = log.series("valid", name).values[-1]
        assert any(x.startswith(f"{name} over") and f"{last:.4g} at" in x for x in descriptions), (
            name
        )
    # The figures are: all losses, two reliability diagrams, one risk-coverage plot, two entropy
    # distributions, and two heat maps (mean and std/mean).
    assert len(descriptions) == len(outline.all("svg")) == len(log.losses()) + 2 + 1 + 2 + 2
    assert all(descriptions)
    assert all(x.get("scope") in ("row", "col") for x in outline.all("th"))


def test_page_loads_nothing_and_escapes_text(page: str) -> None:
    outline = Outline(page)
    assert not outline.all("script") + outline.all("img") + outline.all("iframe")
    assert "<script" not in page
    assert "alert('x')" in " ".join(outline.texts)
    links = [x["href"] for tag, x in outline.elements if "href" in x and tag != "use"]
    assert all(x.startswith(("#", "data:")) for x in links)
    loaded = re.sub(r"xmlns(:\w+)?=\"[^\"]*\"", "", page)
    assert "://" not in re.sub(r"<!DOCTYPE[^>]*>", "", loaded)
    ids = [x["id"] for _, x in outline.elements if "id" in x]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r"url\(#([^)]+)\)|href=\"#([^\"]+)\"", page))
    assert {a or b for a, b in used} <= set(ids)


def test_figures_have_the_text_colour_of_the_page(page: str) -> None:
    assert "#000000" not in page
    assert "currentColor" in page
    assert "prefers-color-scheme: dark" in page


def test_training_is_read_from_the_checkpoint(run: Path, translation_data: Path) -> None:
    training = read_training(find_checkpoint(run))
    assert find_checkpoint(run).name == "checkpoint_best.pt"
    assert training.get("model", "_name") == "transformer_babn"
    assert training.get("model", "attention") == "babn"
    assert training.get("task", "data") == str(translation_data)
    assert (training.get("common", "seed"), training.get("optimization", "lr")) == (3, [0.005])
    assert training.epochs == 2
    assert training.updates == read_log([run / "train.log"]).series("train", "loss").updates[-1]
    state = torch.load(run / "checkpoint_best.pt", weights_only=True)["model"]
    shared = state["encoder.embed_tokens.weight"].numel()  # tied parameters are stored three times
    total = sum(x.numel() for x in state.values() if x.is_floating_point())
    assert training.parameters == total - 2 * shared


def test_hints_name_the_commands_that_create_missing_parts(run: Path, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text((run / "train.log").read_text())
    page = report(tmp_path)
    assert "No checkpoint here" in page
    assert "stochattn-evaluate DATA" in page
    assert "<table" not in page
    (tmp_path / "train.log").unlink()
    state = torch.load(run / "checkpoint_last.pt", weights_only=True)
    state["cfg"]["common"]["log_file"] = None  # otherwise the log is found by this path
    torch.save(state, tmp_path / "some.pt")
    page = report(tmp_path, "--output", tmp_path / "other.html", "--samples", 2)
    assert "fairseq-train … --log-format json" in page
    assert "the first sentence of valid" in page
    elsewhere = evaluated.evaluation(data=str(tmp_path / "gone"))
    (tmp_path / "evaluation.json").write_text(json.dumps(elsewhere))
    page = report(tmp_path)
    assert "gone does not exist" in page
    assert "stochattn-report … --data DIR" in page


def test_bad_input_gives_one_line_and_writes_no_file(run: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("[]")
    (tmp_path / "bad.pt").write_text("no checkpoint")
    empty = tmp_path / "empty"
    empty.mkdir()
    for args, cause in (
        ((tmp_path / "no",), "is not a directory"),
        ((empty,), "no checkpoint, no log and no evaluation"),
        ((empty, "--evaluation", tmp_path / "bad.json"), "it is not an object"),
        ((empty, "--checkpoint", tmp_path / "bad.pt"), "bad.pt"),
        ((empty, "--log", tmp_path / "no.log"), "no.log does not exist"),
        ((run, "--data", empty, "--output", empty / "x.html"), "does not fit the data"),
        ((run, "--samples", 0, "--output", empty / "x.html"), "--samples must be positive"),
        ((run, "--output", empty / "no" / "x.html"), "is not a directory"),
    ):
        with pytest.raises(UsageError, match=re.escape(cause)) as caught:
            report_command.main([str(x) for x in (*args, "--cpu")])
        assert "\n" not in str(caught.value)
    assert not list(empty.iterdir())


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# This page shows the report in frames of several widths. Each frame stores its measurements in the
# attribute data-found.
HARNESS = """<!DOCTYPE html><title>harness</title><body><script>
const measure = (frame) => {
  const page = frame.contentDocument, root = page.documentElement;
  const shown = [...page.querySelectorAll("figure svg")].filter(
    (x) => x.getBoundingClientRect().width > 100 && x.querySelectorAll("path").length > 3);
  frame.dataset.found = JSON.stringify({scroll: root.scrollWidth, wide: root.clientWidth,
    pictures: shown.length, colour: getComputedStyle(page.body).backgroundColor});
  console.log("laid out");
};
</script>%s</body>"""


def browse(page: Path, folder: Path, *flags: str) -> subprocess.CompletedProcess:
    """Open a page in a headless browser without network; skip the test if there is no browser."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser to render the page in (looked for {', '.join(BROWSERS)})")
    quiet = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync")
    offline = ("--disable-background-networking", "--disable-component-update", "--disable-quic")
    own = (f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--hide-scrollbars")
    command = [browser, *quiet, *offline, *own, *flags, page.as_uri()]
    return subprocess.run(command, text=True, capture_output=True, timeout=120)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_renders_in_a_browser(page: str, scheme: str, tmp_path: Path) -> None:
    """On a phone and on a desktop, all figures are visible without overflow or console errors."""
    frames = [
        f'<iframe width="{width}" onload="measure(this)" srcdoc="{escape(page)}"></iframe>'
        for width in (390, 1280)
    ]
    (tmp_path / "harness.html").write_text(HARNESS % "".join(frames), encoding="utf-8")
    preferred = f"--blink-settings=preferredColorScheme={('dark', 'light').index(scheme)}"
    result = browse(tmp_path / "harness.html", tmp_path, preferred, "--dump-dom")
    console = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
    assert ["laid out" in line for line in console] == [True, True], console
    found = [json.loads(x["data-found"]) for x in Outline(result.stdout).all("iframe")]
    assert [x["wide"] for x in found] == [390, 1280]
    for frame in found:
        assert frame["scroll"] <= frame["wide"]
        assert frame["pictures"] == len(Outline(page).all("svg"))
        assert frame["colour"] == {"light": "rgb(252, 252, 251)", "dark": "rgb(20, 22, 26)"}[scheme]


def test_screenshot_is_not_blank(page: str, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    shot = tmp_path / "shot.png"
    result = browse(
        tmp_path / "report.html", tmp_path, "--window-size=390,2000", f"--screenshot={shot}"
    )
    assert "CONSOLE" not in result.stderr
    pixels = pictures.imread(shot)[..., :3]
    assert pixels.shape[:2] == (2000, 390)
    background = pixels[0, 0]
    inked = (abs(pixels - background) > 0.1).any(axis=-1)
    assert 0.02 < inked.mean() < 0.6
    assert inked[1000:].any()
