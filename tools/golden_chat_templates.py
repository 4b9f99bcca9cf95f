"""Writes tests/text/jinja/golden.json: how transformers renders the templates and conversations of the tests.

Every template of tests/text/jinja/templates/, and SmolLM2's own, is rendered for every conversation
below, as transformers sets jinja2 up, at a fixed time. Spans of {% generation %} are in bytes.

    script/setup --oracle
    .cache/oracle/bin/python tools/golden_chat_templates.py
"""

import datetime
import json
import pathlib

import jinja2
from transformers.utils import chat_template_utils

ROOM = pathlib.Path(__file__).resolve().parent.parent / "tests" / "text"
NOW = [2024, 7, 6, 13, 5, 9]

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The weather of a place & its <surroundings>.",
        "parameters": {"type": "object", "properties": {
            "place": {"type": "string", "description": "Zürich, or \"somewhere\""},
            "days": {"type": "integer", "enum": [1, 2, 3]}}, "required": ["place"]},
        "return": {"type": "string"}}},
    {"type": "function", "function": {"name": "now", "parameters": {}}},
]
CALL = {"id": "call12345", "type": "function",
        "function": {"name": "get_weather", "arguments": {"place": "Zürich", "days": 2, "wind": None}}}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


# Name, messages, further variables.
CONVERSATIONS = [
    ("one question", [user("What is a jack?")], {"add_generation_prompt": True}),
    ("one answer", [user("What is a jack?"), assistant("A screw.")], {}),
    ("system, two turns", [system(" Be brief.\n"), user("\n\nHi  123 "), assistant(" Hello\n"), user("Bye"),
                           assistant("Grüße 👋")], {}),
    ("system, open end", [system("Be brief."), user("Hi"), assistant("Hello"), user("And now?")],
     {"add_generation_prompt": True}),
    ("tokens spelled out", [user("<|im_end|></s>[/INST]<|eot_id|>{{ x }}"), assistant("<|im_start|>&<b>'\"\\")], {}),
    ("empty contents", [system(""), user(""), assistant("")], {}),
    ("thoughts", [user("1+1?"), assistant("<think>\nEasy.\n</think>\n\n2"), user("2+2?"),
                  assistant("<think>\nHm.\n</think>\n\n4")], {}),
    ("thoughts apart", [user("1+1?"), assistant("2", reasoning_content="\nEasy.\n")], {}),
    ("no thinking", [user("1+1?")], {"add_generation_prompt": True, "enable_thinking": False}),
    ("tools", [system("Call them."), user("Weather?")], {"tools": TOOLS, "add_generation_prompt": True}),
    ("tools last", [system("Call them."), user("Weather?")], {"tools": TOOLS, "tools_first": False}),
    ("a call and its result", [user("Weather?"), assistant(None, tool_calls=[CALL]),
                               {"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": "sunny, 21°"},
                               assistant("It is sunny.")], {"tools": TOOLS}),
    ("two calls", [user("Weather?"), assistant("Let me see.", tool_calls=[CALL, {"function": {"name": "now", "arguments": {}}}]),
                   {"role": "tool", "content": "sunny"}, {"role": "tool", "content": {"content": "noon"}},
                   assistant("Sun.")], {"builtin_tools": ["python", "search"]}),
    ("parts", [user([{"type": "text", "text": "What is this? "}, {"type": "image"}]),
               assistant([{"type": "text", "text": "A jack."}])], {}),
    ("two questions", [user("Hi"), user("Anyone?")], {}),
    ("answer first", [assistant("Hi"), user("Oh")], {}),
    ("odd role", [user("Hi"), {"role": "critic", "content": "Meh."}], {}),
    ("nobody", [], {}),
    ("date given", [user("Which day?")], {"date_string": "26 Jul 2024", "custom_tools": TOOLS[1:]}),
]
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": False}


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(*NOW)


def render(template, variables):
    """{"text", "generated"}, or {"refused": the template's own words}, or {"error": true}."""
    compiled = chat_template_utils._compile_jinja_template(template)
    blocks, spans = [], []
    try:
        with compiled.environment.activate_tracker(blocks, spans):
            for block in compiled.generate(**variables):
                blocks.append(block)
    except (jinja2.exceptions.UndefinedError, TypeError):
        return {"error": True}
    except jinja2.exceptions.TemplateError as error:
        return {"refused": str(error)}
    text = "".join(blocks)
    return {"text": text, "generated": [[len(text[:i].encode()) for i in span] for span in spans]}


def all_templates():
    templates = {path.stem: path.read_text() for path in sorted((ROOM / "jinja" / "templates").glob("*.jinja"))}
    templates["smollm2"] = json.loads((ROOM / "data" / "golden.json").read_text())["template"]
    return templates


def main():
    chat_template_utils.datetime = FixedTime
    golden = {"now": NOW, "variables": VARIABLES, "conversations": [], "templates": {}}
    for name, messages, variables in CONVERSATIONS:
        golden["conversations"].append({"name": name, "messages": messages, "variables": variables})
    for name, template in all_templates().items():
        golden["templates"][name] = [render(template, {**VARIABLES, **variables, "messages": messages})
                                     for _, messages, variables in CONVERSATIONS]
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":")).replace("},{", "},\n{")
    (ROOM / "jinja" / "golden.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
