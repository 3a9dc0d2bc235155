"""A report with every kind of block and hostile texts."""

from training.reporting.blocks import Code, KeyNumbers, Note, Picture, Report, Section, Table

HOSTILE = (
    "</td></table><script>alert(1)</script><img src=x onerror=alert(1)> | `a` *b* [c](http://d) & \"' $x ${y}"
)
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"><rect width="40" height="20"/></svg>'


def hostile_report() -> Report:
    blocks = (
        KeyNumbers([(HOSTILE, "0.5", HOSTILE)]),
        Note(HOSTILE),
        Code(f"echo ``` {HOSTILE}"),
        Table(
            HOSTILE, ("text", HOSTILE), [(HOSTILE, "1"), ("two\nlines\tand \ud83d\x00", "2")], frozenset((0,))
        ),
        Picture(HOSTILE, SVG, SVG.replace("rect", "rect fill='#fff'"), 40, 20),
    )
    name = f'{HOSTILE}\n- "x": \\ \x07\u2028 港'
    card = {
        "library_name": "keras",
        "pipeline_tag": "text-classification",
        "metrics": ["accuracy"],
        "model-index": [
            {
                "name": name,
                "results": [
                    {
                        "task": {"type": "text-classification", "name": name},
                        "dataset": {"name": name, "type": "rows", "split": "test"},
                        "metrics": [{"type": "accuracy", "name": "accuracy", "value": 0.5}],
                    }
                ],
            }
        ],
    }
    return Report(HOSTILE, HOSTILE, [Section(HOSTILE, blocks), Section("Empty", ())], card)
