"""Texts that somebody may put into the data to get into the page, and a document that holds one of them everywhere."""

from itertools import cycle
from typing import Any

PAYLOADS = [
    "<script>window.hacked=1</script>",
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "<svg onload=window.hacked=1>",
    "<svg><script>window.hacked=1</script></svg>",
    "</title><script>window.hacked=1</script>",
    "</style><script>window.hacked=1</script>",
    "</desc></svg><script>window.hacked=1</script>",
    "</table><h1>all is well</h1>",
    "</details></section></main><h1>x",
    "<iframe src=javascript:window.hacked=1></iframe>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'>",
    "<a href=javascript:window.hacked=1>x</a>",
    "javascript:window.hacked=1",
    "<body onload=window.hacked=1>",
    "<details open ontoggle=window.hacked=1>",
    "<input autofocus onfocus=window.hacked=1>",
    "<video><source onerror=window.hacked=1>",
    "<object data=javascript:window.hacked=1>",
    "<embed src=//evil.example/x.swf>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>*{display:none}</style>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<base href=//evil.example/>",
    "<form action=//evil.example><button>x",
    "<template><script>window.hacked=1</script></template>",
    "<math><mi//xlink:href='data:x,<script>window.hacked=1</script>'>",
    '" onmouseover=window.hacked=1 x="',
    "' onmouseover=window.hacked=1 x='",
    '"><script>window.hacked=1</script>',
    "'><script>window.hacked=1</script>",
    "` onmouseover=window.hacked=1 `",
    "-->\n<script>window.hacked=1</script><!--",
    "<!--",
    "<![CDATA[<script>window.hacked=1</script>]]>",
    "<?xml version='1.0'?>",
    "&lt;script&gt;window.hacked=1&lt;/script&gt;",
    "&#60;script&#62;window.hacked=1&#60;/script&#62;",
    "&amp;lt;b&amp;gt; &nbsp; &unknown;",
    "{{ 7 * 7 }}",
    "{% for i in range(9) %}x{% endfor %}",
    "{{ ''.__class__.__mro__ }} {# gone #}",
    "${7*7} #{7*7} <%= 7*7 %>",
    "{0} {name} %s %(x)s {0.__class__}",
    "\u202e\u202dgnp.exe\u2066 turned",
    "a\x00b\x07\x1b[31mred\x7f\x85\u2028\u2029",
    "\ufeff\u200b\u200d\u00ad\ufffe\ud800"[:5],
    "[red]rich[/] [link=file:///x]y[/link]",
    "x" * 100_000,
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d" * 40,
    "url(//evil.example) expression(alert(1)) ;}*{x:y}",
    "<plaintext>",
    "+ADw-script+AD4-window.hacked=1+ADw-/script+AD4-",
]

OURS = {"verdict", "reasons"}
"""Words of a document that are not foreign: a verdict is one of four."""


def everywhere(document: Any, text: str, name: str = "") -> Any:
    """The same document with the text in place of every other text, in the names of foreign columns too."""
    if isinstance(document, dict):
        foreign = name in ("key", "rows", "shown", "missing", "twice", "orphans", "only_a", "only_b", "versions")
        foreign = foreign and not {"key", "reason"} & set(document)
        if name == "shown":
            foreign = False
        return {f"{text}{i}" if foreign else key: everywhere(value, text, key) for i, (key, value) in
                enumerate(document.items())}  # fmt: skip
    if isinstance(document, list):
        if len(document) == 3 and document[2] in ("missing", "forgotten", "unfillable"):
            return document
        return [
            everywhere(value, f"{text}{i}" if name == "reasons" else text, name) for i, value in enumerate(document)
        ]
    return text if isinstance(document, str) and name not in OURS else document


def mixed(document: Any, texts: list[str]) -> Any:
    """The same document with these texts in turn in its fields."""
    turns = cycle(texts)

    def turned(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: turned(inner, key) for key, inner in value.items()}
        if isinstance(value, list) and not (len(value) == 3 and isinstance(value[2], str)):
            return [turned(inner, name) for inner in value]
        return next(turns) if isinstance(value, str) and name not in OURS else value

    return turned(document)
