"""The page's style sheet and skeleton. Colours are names, once for light and once for dark."""

import re
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

# Data may hold anything, a page may not: control characters, halves of characters, and what reorders text around it.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def render(**values: Any) -> str:
    """The skeleton with these values in its places, and nothing in it that a page may not hold."""
    return _UNPRINTABLE.sub("\ufffd", _TEMPLATE.render(style=Markup(_STYLE), **values))


_STYLE = """
:root {
  color-scheme: light dark;
  --page: #fff; --ink: #1c2126; --soft: #56616c; --rule: #d5dae0; --fill: #f3f5f7;
  --composed: #0067b1; --other: #3b444d; --baseline: #66717b; --good: #00704f; --bad: #b3261e;
  --mostly: #f5a04a; --rarely: #c4520c; --never: #b4bcc4;
  --heat0: #fff3e4; --heat1: #fee3c4; --heat2: #fdcb98; --heat3: #fbac67; --heat4: #f58a3c;
  --heat5: #e5691b; --heat6: #c74c08; --heat7: #9b3803; --heat8: #6a2503;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #14181c; --ink: #e4e8ec; --soft: #9da8b3; --rule: #343c44; --fill: #1d2329;
    --composed: #62b0f5; --other: #cdd4db; --baseline: #87929d; --good: #5cc9a2; --bad: #ff8a80;
    --mostly: #b9651a; --rarely: #ffad5c; --never: #59636d;
    --heat0: #2a1f18; --heat1: #42291a; --heat2: #5e351a; --heat3: #7d4318; --heat4: #a05417;
    --heat5: #c76a1c; --heat6: #eb8836; --heat7: #ffb270; --heat8: #ffe0bd;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 72rem; overflow-wrap: break-word;
  background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
h1 { max-width: 46rem; margin: 0 0 1.5rem; font-size: 1.65rem; line-height: 1.3; font-weight: 650; text-wrap: balance; }
h2 { margin: 3.25rem 0 .5rem; font-size: 1.25rem; line-height: 1.3; }
h3 { margin: 1.5rem 0 .5rem; font-size: .95rem; color: var(--soft); font-weight: 600; }
h4 { margin: 0 0 .25rem; font-size: .85rem; }
p, ul, pre { margin: 0 0 1rem; }
.about { max-width: 46rem; color: var(--soft); }
.whole { white-space: nowrap; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: .9rem 2rem; margin: 0; }
.facts dt, .words dt { color: var(--soft); font-size: .85rem; }
.facts dd { margin: 0; }
.words { columns: 24rem 2; column-gap: 2.5rem; margin: 1rem 0 0; font-size: .9rem; }
.words div { break-inside: avoid; padding-bottom: .4rem; }
.words dt, .words dd { display: inline; margin: 0; }
.words dt { margin-right: .5em; color: var(--ink); font-size: inherit; font-weight: 600; }
.words dd { color: var(--soft); }
.composed { color: var(--composed); }
.other { color: var(--other); }
.baseline { color: var(--baseline); }

.scroll { overflow-x: auto; }
table {
  border-collapse: separate; border-spacing: 0; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums;
}
th, td { padding: .3rem .55rem; text-align: right; vertical-align: baseline; white-space: nowrap; }
td small { display: block; color: var(--soft); font-size: .75rem; line-height: 1.2; }
thead th { border-bottom: 2px solid var(--ink); font-weight: 600; }
tbody th, thead th:first-child {
  position: sticky; left: 0; background: var(--page); text-align: left; padding-left: 0; font-weight: 600;
}
tbody tr + tr > * { border-top: 1px solid var(--rule); }
tbody .group th { padding-top: 1.1rem; color: var(--soft); font-weight: 500; font-size: .8rem; }
tbody tr.of-baseline td { color: var(--soft); }
.yes { color: var(--good); }
.no { color: var(--bad); }

figure { margin: 0; }
figure + .about { margin-top: .75rem; }
svg { display: block; max-width: 100%; overflow: visible; }
svg[height][viewBox] { height: auto; }
svg text { font: 12px system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; fill: var(--soft); }
svg .name { font-weight: 600; }
svg .name, svg .halo { paint-order: stroke; stroke: var(--page); stroke-width: 4px; stroke-linejoin: round; }
svg .name.composed { fill: var(--composed); }
svg .name.other { fill: var(--other); }
svg .grid { stroke: var(--rule); }
svg .axis, svg .ceiling { stroke: var(--baseline); }
svg .ceiling { stroke-dasharray: 5 3; }
svg .leader { stroke: var(--rule); }
svg .bar { stroke: currentColor; stroke-width: 2; }
svg .trend { stroke: currentColor; stroke-width: 1.5; }
svg .mark { fill: currentColor; stroke: var(--page); stroke-width: 1; }
svg .mark.baseline { fill: var(--page); stroke: currentColor; stroke-width: 1.5; }
svg .mostly { fill: var(--mostly); }
svg .rarely { fill: var(--rarely); }
svg .never { fill: var(--never); }
svg path, svg rect { shape-rendering: crispEdges; }
svg path.mark { shape-rendering: auto; }
svg .heat0 { fill: var(--heat0); } svg .heat1 { fill: var(--heat1); } svg .heat2 { fill: var(--heat2); }
svg .heat3 { fill: var(--heat3); } svg .heat4 { fill: var(--heat4); } svg .heat5 { fill: var(--heat5); }
svg .heat6 { fill: var(--heat6); } svg .heat7 { fill: var(--heat7); } svg .heat8 { fill: var(--heat8); }
.on-narrow { display: none; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(10.3rem, 1fr)); gap: 1.25rem 1rem; }
.panel { break-inside: avoid; }
.panel p { margin: .25rem 0 0; color: var(--soft); font-size: .8rem; line-height: 1.35; }
.keys { display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; font-size: .875rem; }
.swatch { display: inline-block; width: .9em; height: .9em; margin-right: .45em; vertical-align: -.08em; }
.swatch.mostly { background: var(--mostly); }
.swatch.rarely { background: var(--rarely); }
.swatch.never { background: var(--never); }
.keys, .swatch { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.rows { max-width: 60rem; font-size: .875rem; }
.row {
  display: grid; grid-template-columns: 12.5rem 7.5rem 1fr 12.5rem; gap: 0 .75rem; align-items: center; margin: .3rem 0;
}
.row.head { color: var(--soft); font-size: .8rem; }
.row .name { font-weight: 600; overflow-wrap: anywhere; }
.row .always, .row .against { color: var(--soft); font-variant-numeric: tabular-nums; }
.missing { max-width: 46rem; padding: .75rem 1rem; background: var(--fill); }

.example { break-inside: avoid; border-top: 1px solid var(--rule); padding: 1.1rem 0 .6rem; }
.example h3 { margin: 0 0 .25rem; color: var(--ink); font-size: 1rem; }
.example .meta { color: var(--soft); font-size: .875rem; margin: 0 0 .6rem; }
.given {
  list-style: none; padding: 0; margin: 0; font-size: .9rem;
  display: grid; grid-template-columns: repeat(auto-fill, minmax(15.5rem, 1fr)); gap: .9rem 1.5rem;
}
.given > li { break-inside: avoid; min-width: 0; }
.given .who { font-weight: 600; line-height: 1.3; overflow-wrap: anywhere; }
.given .how { color: var(--soft); font-size: .8rem; }
.given ul { list-style: none; padding: 0; margin: .15rem 0; display: flex; flex-wrap: wrap; gap: .3rem; }
.given ul li { background: var(--fill); padding: .05rem .5rem; border-radius: .3rem; max-width: 100%; }
details { margin: .8rem 0 0; font-size: .9rem; }
details > * + * { margin-top: .6rem; }
summary { color: var(--soft); cursor: pointer; }
.count { color: var(--soft); font-variant-numeric: tabular-nums; }
bdi, .example h3 { overflow-wrap: anywhere; unicode-bidi: isolate; }
pre {
  padding: .9rem 1rem; background: var(--fill); overflow-wrap: anywhere; white-space: pre-wrap;
  font: .82rem/1.5 ui-monospace, "Cascadia Mono", Menlo, "DejaVu Sans Mono", monospace;
}
footer { margin-top: 3rem; color: var(--soft); font-size: .85rem; }

@media screen and (max-width: 820px) {
  body { padding: 1.5rem 1rem 3rem; }
  h1 { font-size: 1.35rem; }
  .facts { grid-template-columns: 1fr 1fr; gap: .8rem 1.25rem; }
  .on-wide { display: none; }
  .on-narrow { display: block; }
  .row { grid-template-columns: 1fr auto; margin: .6rem 0; }
  .row svg { grid-column: 1 / -1; grid-row: 2; }
  .row .against { grid-column: 1 / -1; }
  .row.head { display: none; }
}
@media print {
  @page { margin: 13mm; }
  body { padding: 0; font-size: 10pt; }
  h2, h3, h4, .keys, .row.head { break-after: avoid; }
  .scroll { overflow: visible; }
  table { font-size: 7.2pt; }
  th, td { padding: .15rem .25rem; }
  td small { font-size: 6pt; }
  tbody th, thead th:first-child { position: static; }
  .row { grid-template-columns: 9.5rem 5.5rem 1fr 8rem; break-inside: avoid; }
  .panels { grid-template-columns: repeat(4, 1fr); }
  .words { columns: 2; }
  .given { grid-template-columns: repeat(3, 1fr); }
  details { display: none; }
}
"""

_TEMPLATE = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(
    """\
{% macro given(blocks) %}
<ul class="given">
{% for block in blocks %}
<li><div class="who">{{ block.modes|join(", ") }}</div>
<div class="how">{{ block.right }}{{ ", " ~ block.same if block.same }}</div>
<ul>
{% for answer in block.answers %}
<li>
{% if answer.em == 1 %}
<span class="yes" role="img" aria-label="right">&#10003;</span>
{% elif answer.em is not none %}
<span class="no" role="img" aria-label="wrong">&#10007;</span>
{% endif %}
{% if answer.text %}
<bdi>{{ answer.text }}</bdi>
{% else %}
<em>empty</em>
{% endif %}
<span class="count">&times;{{ answer.count }}</span>
</li>
{% endfor %}
{% if block.more %}
<li>and {{ block.more }} more answers</li>
{% endif %}
</ul>
{% if block.wrong %}
<div class="how">wrong with gold {{ block.wrong }}</div>
{% endif %}
</li>
{% endfor %}
</ul>
{% endmacro %}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="generator" content="LinearKV">
<link rel="icon" href="data:,">
<title>{{ title }}</title>
<style>{{ style }}</style>
</head>
<body>
<main>
<h1>{{ verdict }}.</h1>
<dl class="facts">
{% for name, value in facts %}
<div><dt>{{ name }}</dt> <dd><bdi>{{ value }}</bdi></dd></div>
{% endfor %}
</dl>

<section>
<h2 id="modes">Modes</h2>
{% if groups %}
<p class="about" id="table">
Every mode answered the same questions from the same chunks in the same orders. Means over questions and random orders;
small print is the 95% interval, under TTFT the ratio to full prefill.
</p>
<div class="scroll" tabindex="0" role="region" aria-labelledby="modes">
<table aria-labelledby="modes" aria-describedby="table">
<thead>
<tr><th scope="col">mode</th>{% for name, _ in columns %}<th scope="col">{{ name }}</th>{% endfor %}</tr>
</thead>
{% for title, rows in groups %}
<tbody>
<tr class="group"><th scope="rowgroup" colspan="{{ columns|length + 1 }}">{{ title }}</th></tr>
{% for row in rows %}
<tr class="of-{{ row.kind }}"><th scope="row" class="{{ row.kind }}">{{ row.mode }}</th>
{% for text, small in row.cells %}
<td{% if loop.index == 3 and row.keeps %} class="{{ row.keeps }}"{% endif %}>{{ text }}
{%- if small %}<small>{{ small }}</small>{% endif %}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
{% endfor %}
</table>
</div>
<h3>The columns</h3>
<dl class="words">
{% for name, words in columns %}
<div><dt>{{ name }}</dt> <dd>{{ words }}</dd></div>
{% endfor %}
</dl>
{% if modes %}
<h3>The modes</h3>
<dl class="words">
{% for name, words in modes %}
<div><dt>{{ name }}</dt> <dd>{{ words[0]|upper ~ words[1:] }}.</dd></div>
{% endfor %}
</dl>
{% endif %}
{% else %}
<p class="missing">There is no table: no question could be asked. The notes below say why.</p>
{% endif %}
</section>

{% for figure in figures %}
<section>
<h2>{{ figure.title }}</h2>
{% if figure.missing %}
<p class="missing">Left out: {{ figure.missing }}.</p>
{% else %}
<p class="about">{{ figure.about }}</p>
{% for subtitle, drawing in figure.parts %}
{% if subtitle %}
<h3>{{ subtitle }}</h3>
{% endif %}
<figure>{{ drawing }}</figure>
{% endfor %}
{% if figure.remark %}
<p class="about">{{ figure.remark }}</p>
{% endif %}
{% endif %}
</section>
{% endfor %}

<section>
<h2>Questions that flip</h2>
{% if examples %}
<p class="about">
The {{ examples|length }} question{{ "s" if examples|length > 1 }} in which full prefill and {{ examples_of }} disagree
most, over the random orders. Behind each answer stands in how many orders it was given; answers that are the same under
the scoring rule are one, and modes with the same answers share a block. Under them, where the gold chunk stood when a
mode was wrong.
</p>
{% for example in examples %}
<article class="example">
<h3 dir="auto">{{ example.question }}</h3>
<p class="meta">
{% if example.answers %}
Accepted:
{% for answer in example.answers %}
<strong><bdi>{{ answer }}</bdi></strong>{{ "," if not loop.last }}
{% endfor %}
{{ "and " ~ example.more_answers ~ " more" if example.more_answers }}&ensp;
{% else %}
No accepted answer is known.
{% endif %}
{% if example.gold %}
Gold:
{% for name in example.gold %}
<bdi>{{ name }}</bdi>,
{% endfor %}
among {{ example.chunks }} chunks.
{% else %}
{{ example.chunks }} chunk{{ "s" if example.chunks != 1 }}, no gold chunk known.
{% endif %}
{% if example.hops %}
{{ example.hops }} hop{{ "s" if example.hops != 1 }}.
{% endif %}
{% if example.note %}
<bdi>{{ example.note }}</bdi>.
{% endif %}
Id <bdi>{{ example.id }}</bdi>.
</p>
{{ given(example.blocks) }}
{% if example.others %}
<details>
<summary>Other recipes and ablations</summary>
{{ given(example.others) }}
</details>
{% endif %}
</article>
{% endfor %}
{% elif examples_of and groups %}
<p class="missing">None: {{ examples_of }} gave full prefill&#8217;s answer to every question in every random order.</p>
{% else %}
<p class="missing">Left out: no mode that composes was evaluated.</p>
{% endif %}
</section>

<section>
<h2>Scoring, notes and how to run it again</h2>
<p class="about">
Answers were compared under the rule <strong>{{ rule }}</strong>. {{ rule_words }} The question is the unit of every
interval: questions are drawn again with all their orders, {{ "{:,}".format(resamples) }} times.
</p>
{% if unscored or notes %}
<ul>
{% for line in unscored %}
<li>{{ line }}.</li>
{% endfor %}
{% for note in notes %}
<li><bdi>{{ note }}</bdi></li>
{% endfor %}
{% if more_notes %}
<li>and {{ more_notes }} more notes, which the JSON report has.</li>
{% endif %}
</ul>
{% endif %}
<h3>Run it again</h3>
<pre><code>{{ again }}</code></pre>
<h3>Options</h3>
<pre><code>{{ options }}</code></pre>
</section>
</main>
<footer>
Made by LinearKV from the records of the evaluation alone. Every answer and every number is in the JSON report.
</footer>
</body>
</html>
"""
)
