"""The page in a real browser, offline: it draws, sorts, filters, changes theme and stays inert.

`make test` has the tests of drawing, of the leaderboard and of hostile text.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import replace

import pytest
from page_checks import list_broken_words, list_violations
from report_samples import MemorySource, measured_task, run_info, sample

import reports
from search_spaces.records import Workload

pytestmark = pytest.mark.browser
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


#: The contrast of each cell's text with its ground, by WCAG 2.
_CONTRAST = """all => {
  const light = (color) => {
    const parts = color.match(/[0-9.]+/g).slice(0, 3).map(Number);
    const scale = color.startsWith("color(") ? 1 : 255;
    const [r, g, b] = parts.map((part) => {
      const value = part / scale;
      return value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return all.map((node) => {
    const own = light(getComputedStyle(node).color);
    const ground = light(getComputedStyle(node.parentElement).backgroundColor);
    return (Math.max(own, ground) + 0.05) / (Math.min(own, ground) + 0.05);
  });
}"""


@pytest.fixture
def visit(browser, tmp_path):
    """Opens the report of a source; anything on the console, the net or a dialog is collected."""
    trouble: list[str] = []
    requests: list[str] = []
    contexts = []
    path = tmp_path / "report.html"

    def opened(source: MemorySource, anchor: str = "", **context):
        reports.write(source, None, path)
        contexts.append(browser.new_context(offline=True, accept_downloads=True, **context))
        contexts[-1].set_default_timeout(300_000)
        page = contexts[-1].new_page()
        page.on("console", lambda message: trouble.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (trouble.append("dialog"), dialog.dismiss()))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"{path.as_uri()}{anchor}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert trouble == []
    assert {url.partition("#")[0] for url in requests} == {path.as_uri()}


#: Opens an element's folds.
_UNFOLD = "node => { for (; node; node = node.parentElement) node.open = true; }"


def _plot(page, name: str):
    plot = page.locator(f"#figure-{name} .plot")
    plot.evaluate(_UNFOLD)
    plot.scroll_into_view_if_needed()
    page.wait_for_function("node => node.querySelector('.main-svg')", arg=plot.element_handle())
    return plot


def test_figures_are_drawn_when_they_come_into_view(visit):
    source = sample(3, built=1)
    figures = reports.plotly_figures(source)
    page = visit(source, color_scheme="light", viewport={"width": 1200, "height": 800})
    assert page.locator("[data-plotted]").count() <= 1
    for name in ("speedups", "static-facts", "failures", "noise"):
        plot = _plot(page, name)
        assert plot.locator(".modebar").count() == 1
        titles = plot.locator(".modebar-btn").evaluate_all("all => all.map(b => b.dataset.title)")
        assert titles
        assert not [
            title for title in titles if "cloud" in title.lower() or "share" in title.lower()
        ]
    assert page.locator("details.task [data-plotted]").count() == 0
    page.locator("details.task").first.evaluate(_UNFOLD)
    page.locator("details.task[open] .plot").first.scroll_into_view_if_needed()
    for plot in page.locator("details.task[open] .plot").all():
        plot.scroll_into_view_if_needed()
        page.wait_for_function("node => node.querySelector('.main-svg')", arg=plot.element_handle())
        # What is drawn is what the figure's function makes of the trials.
        drawn = plot.evaluate("node => JSON.parse(JSON.stringify(node.data))")
        expected = figures[
            plot.evaluate("node => node.parentElement.id").removeprefix("figure-")
        ].to_plotly_json()["data"]
        for trace, wanted in zip(drawn, expected, strict=True):
            for name in ("x", "y", "text", "customdata"):
                made, given = trace.get(name, []), list(wanted.get(name, []))
                assert made == (given if name == "text" else pytest.approx(given, rel=1e-4))


@pytest.mark.full
def test_the_time_line_is_drawn_with_hostile_names_as_text(visit):
    source = sample(1, built=0)
    spans = [[0, 0.0, 900.0, 0, "build", HOSTILE], [1, 100.0, 500.0, 0, "job", "screening"]]
    source.timelines[source.runs()[0].run_id] = {
        "lanes": [HOSTILE, "cpu-0"],
        "spans": spans,
        "spans_left_out": 0,
    }
    page = visit(source, viewport={"width": 1200, "height": 800})
    plot = _plot(page, "timeline-spans")
    assert plot.locator(".barlayer .point").count() == 2
    texts = plot.locator(".annotation").all_text_contents()
    assert texts[0].strip().startswith("</script>")
    assert texts[1].strip() == "cpu-0"


def test_sorting_filtering_and_csv(visit):
    page = visit(sample(6, built=0))
    heading = page.locator(
        "#leaderboard-table th", has=page.get_by_role("button", name="Against default")
    )
    column = heading.evaluate("node => node.cellIndex")

    def shown() -> list[float]:
        cells = page.locator(f"#leaderboard-table tbody tr:visible > :nth-child({column + 1})")
        return [float(value) for value in cells.evaluate_all("all => all.map(c => c.dataset.sort)")]

    heading.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "ascending"
    assert shown() == sorted(shown())
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    assert shown() == sorted(shown(), reverse=True)

    page.get_by_label("Filter").fill("matmul bfloat16")
    assert len(shown()) == 3
    assert page.locator("[data-shown]").inner_text() == "3 of 6 shown"
    page.get_by_label("Verdict").select_option("slower")
    assert len(shown()) == 1
    page.get_by_label("Filter").fill("nothing like it")
    assert shown() == []

    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    lines = download.value.path().read_text().splitlines()
    assert len(lines) == 7
    assert lines[0].startswith("kernel,workload,device")


@pytest.mark.full
def test_the_theme_follows_the_system_and_the_button(visit):
    page = visit(sample(1, built=0), color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    plot = _plot(page, "speedups")
    label = plot.locator(".annotation-text").first
    light_on_dark = label.evaluate("node => getComputedStyle(node).fill")
    page.get_by_role("button", name="Light theme").click()
    assert page.get_by_role("button", name="Dark theme").is_visible()
    assert page.evaluate(ground) != dark
    assert plot.get_attribute("data-plotted") == "light"
    assert label.evaluate("node => getComputedStyle(node).fill") != light_on_dark
    page.reload()
    assert page.evaluate(ground) != dark


@pytest.mark.full
def test_all_trials_are_listed_but_only_those_in_view_are_drawn(visit):
    source = sample(1, built=0)
    (info,) = source.tasks(2)
    trials = source.trials(info.task_id)
    slow = [trial for trial in trials if trial.status.value == "timeout"]
    page = visit(source, permissions=["clipboard-read", "clipboard-write"])
    box = page.locator(".trials")
    rows = box.locator("tbody tr:has(td)")
    rows.first.wait_for()
    assert rows.count() < len(trials)
    assert f"{len(trials)} of {len(trials)} shown" in box.inner_text()
    fastest = min((t for t in trials if t.median_us), key=lambda t: t.median_us)
    assert rows.first.locator("td").first.inner_text() == str(fastest.number)
    box.get_by_label("Order").select_option("as finished")
    box.locator(".scroll").evaluate("node => node.scrollTo(0, node.scrollHeight)")
    last = box.get_by_role("cell", name=f"tuner show 2/1/{len(trials) - 1} ")
    last.wait_for()
    button = last.get_by_role("button")
    button.click()
    page.wait_for_function("node => node.textContent === 'Copied'", arg=button.element_handle())
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == f"tuner show 2/1/{len(trials) - 1}"
    box.get_by_label("Status").select_option("timeout")
    assert rows.count() == len(slow) > 1
    assert all("no answer within 60 s" in row for row in rows.all_inner_texts())


@pytest.mark.full
def test_a_deep_link_opens_its_task(visit):
    page = visit(sample(2, built=0), "#task-softmax-m-1024-n-8192-dtype-bfloat16-batch-1-cuda-90")
    assert page.locator("details.task[open]").count() == 1
    page.wait_for_selector("details.task[open] [data-plotted]")


@pytest.mark.full
def test_configs_can_be_copied(visit):
    page = visit(sample(1, built=0), permissions=["clipboard-read", "clipboard-write"])
    page.get_by_text("in full, to paste").first.click()
    button = page.locator("button.copy").first
    button.click()
    page.wait_for_function("node => node.textContent === 'Copied'", arg=button.element_handle())
    assert page.evaluate("navigator.clipboard.readText()").startswith('{"BLOCK_M":')


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1024, 1440])
def test_no_column_of_the_first_screen_is_cut(visit, width, scheme):
    page = visit(sample(6), viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.locator("#comparison-map").evaluate(_UNFOLD)
    for name in ("comparison-map", "leaderboard-table"):
        scroll = page.locator(f".scroll:has(> #{name})")
        assert scroll.evaluate("node => node.scrollWidth - node.clientWidth") == 0
    cells = page.locator("#comparison-map td a")
    contrast = cells.evaluate_all(_CONTRAST)
    assert len(contrast) > 12
    assert min(contrast) >= 4.5


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(visit, scheme):
    page = visit(sample(2), color_scheme=scheme)
    page.get_by_role("button", name="Unfold all").click()
    page.locator(".trials tbody td").first.wait_for()
    _plot(page, "speedups")
    assert list_violations(page) == []


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_pdf_has_every_figure_that_is_unfolded(visit, scheme, tmp_path):
    source = sample(3)
    page = visit(source, color_scheme=scheme, viewport={"width": 1024, "height": 800})
    path = tmp_path / "report.pdf"
    page.pdf(path=path)
    text = subprocess.run(["pdftotext", path, "-"], stdout=subprocess.PIPE, text=True, check=True)
    assert "Leaderboard" in text.stdout
    assert not {"Tasks", "Noise", "Environment"} & set(text.stdout.splitlines())
    assert page.locator("details [data-plotted]").count() == 0
    page.get_by_role("button", name="Unfold all").click()
    _plot(page, "speedups")
    page.evaluate("""() => {
      window.addEventListener("beforeprint", () => {
        document.body.dataset.printed = [...document.querySelectorAll(".plot")]
          .map((plot) => plot.dataset.plotted + plot.querySelectorAll(".main-svg").length)
          .join(" ");
      });
    }""")
    page.pdf(path=path)
    figures = reports.plotly_figures(source)
    printed = page.evaluate("document.body.dataset.printed").split()
    assert len(printed) == len(figures) == 5 + 4 * 3
    assert all(each.startswith("light") and not each.endswith("0") for each in printed)
    text = subprocess.run(["pdftotext", path, "-"], stdout=subprocess.PIPE, text=True, check=True)
    titles = Counter(
        axis["title"]["text"]
        for figure in figures.values()
        for name, axis in figure.to_plotly_json()["layout"].items()
        if name.startswith("xaxis") and "title" in axis
    )
    assert titles["time ÷ fastest trial"] == 3
    assert titles - Counter(text.stdout.splitlines()) == Counter()
    images = subprocess.run(["pdfimages", "-list", path], stdout=subprocess.PIPE, check=True)
    kinds = [line.split()[2] for line in images.stdout.splitlines()[2:]]
    assert kinds.count(b"image") == 3  # the heat maps
    # The page is as before.
    assert page.locator("#figure-speedups .plot").get_attribute("data-plotted") == scheme


def test_each_task_stands_once_and_paper_has_four_pages(visit, tmp_path):
    source = sample(16, built=0)
    page = visit(source, viewport={"width": 1440, "height": 900})
    labels = [task.key.workload.key for task in source.tasks(2)]
    listed = page.locator("tbody tr:visible, details.task > summary:visible, .annotation:visible")
    shown = [text.replace("\n", " ") for text in listed.all_inner_texts()]
    assert len(labels) == 16
    assert [sum(label in text for text in shown) for label in labels] == [1] * 16
    page.pdf(path=tmp_path / "report.pdf")
    facts = subprocess.run(
        ["pdfinfo", tmp_path / "report.pdf"], stdout=subprocess.PIPE, text=True, check=True
    )
    assert int(facts.stdout.partition("Pages:")[2].split()[0]) <= 4
    page.get_by_role("link", name="matmul").first.click()
    assert page.locator("details.task[open]").count() == 1


@pytest.mark.full
def test_the_browser_finds_text_of_tasks_that_were_never_opened(visit):
    source = sample(3, built=0)
    source.task_lists[2][1] = replace(source.task_lists[2][1], note="only the second says this")
    page = visit(source)
    page.wait_for_selector("details.task > noscript", state="detached")
    assert page.locator("details.task[open]").count() == 0
    page.goto(f"{page.url}#:~:text=only%20the%20second")
    page.locator("details.task[open]").wait_for()
    assert page.locator("details.task[open]").count() == 1
    assert page.get_by_text("only the second says this").is_visible()


@pytest.mark.full
def test_a_cell_of_the_map_opens_its_task(visit):
    page = visit(sample(3, built=0))
    page.locator("#comparison-map").evaluate(_UNFOLD)
    page.locator("#comparison-map tbody tr").nth(1).locator("a").last.click()
    opened = page.locator("details.task[open]")
    assert opened.count() == 1
    assert "M=2048" in opened.locator("summary").first.inner_text()


@pytest.mark.parametrize("width", [390, 1440])
def test_a_config_of_many_changes_makes_no_high_row(visit, width):
    source = sample(1, built=0)
    (task,) = source.task_lists[2]
    winner = {f"parameter_{number}": number for number in range(9)}
    source.task_lists[2] = [replace(task, selection=replace(task.selection, winner=winner))]
    page = visit(source, viewport={"width": width, "height": 900})
    config = page.locator("#leaderboard-table .config")
    changes = config.locator("code")
    assert changes.count() > 9
    lines = config.bounding_box()["height"] / changes.first.bounding_box()["height"]
    assert lines <= changes.count() / 2


@pytest.mark.full
def test_narrow_pages_break_no_word_and_do_not_scroll_sideways(visit):
    source = sample(3)
    measured_task(source, 2, "grouped_attention_backward", Workload.of(M=64))
    page = visit(source, viewport={"width": 390, "height": 800})
    assert list_broken_words(page) == []
    page.get_by_role("button", name="Unfold all").click()
    _plot(page, "speedups")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert list_broken_words(page) == []
    page.add_style_tag(content="td { word-break: break-all; max-width: 3rem; }")
    assert list_broken_words(page) != []


@pytest.mark.full
def test_the_page_can_be_read_without_scripts(visit):
    page = visit(sample(2), java_script_enabled=False)
    assert page.locator("#leaderboard-table tbody tr:visible").count() == 2
    assert not page.get_by_label("Filter").is_visible()
    assert not page.locator(".plot").first.is_visible()
    page.locator("#leaderboard > details > summary").last.click()
    page.locator("#figure-speedups summary").click()
    assert page.locator("#figure-speedups table").is_visible()
    page.locator("#tasks > details > summary").click()
    page.locator("details.task > summary").first.click()
    assert page.locator("details.task[open] .finals table").is_visible()


def test_hostile_text_does_nothing(visit):
    runs = [run_info(number, campaign=HOSTILE, **{HOSTILE: HOSTILE * number}) for number in (1, 2)]
    source = MemorySource(runs)
    workload = Workload.of(**{HOSTILE: HOSTILE})
    info = measured_task(source, 2, HOSTILE, workload, count=40)
    chosen = replace(info.selection, winner={HOSTILE: HOSTILE})
    info = replace(info, selection=chosen, baselines=(replace(info.baselines[0], name=HOSTILE),))
    source.task_lists[2] = [info]
    before = measured_task(source, 1, HOSTILE, workload, best_us=30.0, count=4)
    gone = measured_task(source, 1, f"gone{HOSTILE}", workload, count=4)
    source.task_lists[1] = [before, gone]
    source.trial_lists[info.task_id] = [
        replace(t, message=HOSTILE, detail=HOSTILE, config={HOSTILE: n % 3, "B": HOSTILE * (n % 2)})
        for n, t in enumerate(source.trial_lists[info.task_id])
    ]
    page = visit(source)
    page.get_by_role("button", name="Unfold all").click()
    for plot in page.locator(".plot").all():
        plot.scroll_into_view_if_needed()
        page.wait_for_function("node => node.dataset.plotted", arg=plot.element_handle())
    assert page.locator("img").count() == 0
    assert HOSTILE in page.locator("#comparison-map thead").inner_text()
    assert page.locator(".changes li").count() == 3
    assert HOSTILE in page.locator(".changes li").first.inner_text()
    assert page.locator("h1").inner_text().startswith("</script>")
