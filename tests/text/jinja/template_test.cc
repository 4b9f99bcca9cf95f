#include "tests/text/jinja/fixture.h"

namespace jackscrew::jinja {
namespace {

// The text with its template's bytes in brackets and generated ones in braces.
std::string marked(const Text& text) {
  std::string out;
  size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    const std::string part(text.view().substr(begin, run.end - begin));
    std::string piece = (run.origin & kTemplate) != 0 ? "[" + part + "]" : part;
    out += (run.origin & kGenerated) != 0 ? "{" + piece + "}" : piece;
    begin = run.end;
  }
  return out;
}

std::string origins(const std::string& source) {
  return marked(render_text(source, {{"x", Value::text("cont")},
                                     {"eos", Value::text("</s>", kTemplate)},
                                     {"l", Value::list({Value::text("a"), Value::text("b")})}}));
}

TEST(JinjaOrigin, LiteralsAreTheTemplatesAndValuesAreContent) {
  EXPECT_EQ(origins("<|a|>{{ x }}{{ '<|b|>' + x ~ eos }}"), "[<|a|>]cont[<|b|>]cont[</s>]");
  EXPECT_EQ(origins("{{ ' <|a|>' ~ x ~ '  ' | trim }}"), "[ <|a|>]cont");
  EXPECT_EQ(origins("{{ (' <|a|>' ~ x ~ '  ') | trim | upper }}"), "[<|A|>]CONT");
  EXPECT_EQ(origins("{{ ('ab' ~ x)[1:4] }}{{ (x ~ 'yz')[-1] }}"), "[b]co[z]");
  EXPECT_EQ(origins("{{ ('ab' ~ x)[::-1] }}"), "tnoc[ba]");
  EXPECT_EQ(origins("{{ (x ~ '|' ~ x).split('|') | join('-') }}"), "cont[-]cont");
  EXPECT_EQ(origins("{{ x | replace('n', 'N') }}"), "co[N]t");
  EXPECT_EQ(origins("{{ 'a' * 2 ~ x * 2 }}"), "[aa]contcont");
  EXPECT_EQ(origins("{{ x | safe }}{{ '<|&|>' | safe }}{{ u | safe }}{{ 5 | safe ~ x }}"),
            "cont[<|&|>]5cont");
  EXPECT_EQ(origins("{% set t %}<{{ x }}>{% endset %}{{ t }}"), "[<]cont[>]");
  EXPECT_EQ(origins("{% macro m(y) %}<{{ y }}>{% endmacro %}{{ m(x) | string }}"), "[<]cont[>]");
  EXPECT_EQ(origins("{{ l | join(eos) }}"), "a[</s>]b");
  EXPECT_EQ(origins("{{ (x ~ '\\n' ~ x) | indent(1) }}"), "cont[\n ]cont");
}

TEST(JinjaOrigin, WhatIsFormattedAnewIsContent) {
  EXPECT_EQ(origins("{{ '<|a|>' | tojson }}"), "\"<|a|>\"");
  EXPECT_EQ(origins("{{ ['<|a|>'] }}{{ 12 }}{{ none }}"), "['<|a|>']12None");
}

TEST(JinjaOrigin, GenerationIsMarkedWhereverItGoes) {
  EXPECT_EQ(origins("a{% generation %}{{ x }}<e>{% endgeneration %}b"), "[a]{cont}{[<e>]}[b]");
  EXPECT_EQ(origins("{% macro m() %}({% generation %}{{ x }}{% endgeneration %}){% endmacro %}"
                    "{% set t = m() %}-{{ t | upper }}"),
            "[-(]{CONT}[)]");
  EXPECT_TRUE(Template::parse("{% generation %}{% endgeneration %}").has_generation());
  EXPECT_FALSE(Template::parse("{{ generation }} generation").has_generation());
  EXPECT_TRUE(Template::parse("{{ strftime_now('%Y') }}").uses_clock());
  EXPECT_FALSE(Template::parse("strftime_now").uses_clock());
}

TEST(JinjaErrors, NameLineAndConstruct) {
  const auto refused = [](const char* part, const char* source) {
    expect_refused(ErrorKind::model, part, source);
  };
  refused("line 2: the filter \"shout\"", "a\n{{ 'x' | shout }}");
  refused("line 3: the test \"odd_one\"", "\n\n{% if 1 is odd_one %}{% endif %}");
  refused("line 2: the tag {% include %}", "\n{% include 'x' %}");
  refused("line 1: the tag {% endif %}", "{% endif %}");
  refused("line 3: {% if %} of line 2: {% elif %} or {% else %} or {% endif %} is missing",
          "\n{% if 1 %}\nx");
  refused("line 1: %} was expected, found \"2\"", "{% set x = 1 2 %}");
  refused("line 2: a string that does not end", "\n{{ 'a }}");
  refused("line 1: a comment", "{# a");
  refused("line 1: {% raw %}", "{% raw %}{{");
  refused("line 1: ')' without '('", "{{ 1) }}");
  refused("line 1: the character '?'", "{{ a ? b }}");
  refused("beyond ASCII", "{{ größe }}");
  refused("an expression was expected", "{{ }}");
  refused("\"*\" in a call", "{{ range(*[1]) }}");
  refused("recursive loop", "{% for a in b recursive %}{% endfor %}");
  refused("{% break %} outside of a loop", "{% break %}");
  refused("assignment to \"loop\"", "{% for a in b %}{% set loop = 1 %}{% endfor %}");
  refused("assignment to true", "{% set true = 1 %}");
  refused("behind one with a default", "{% macro m(a=1, b) %}{% endmacro %}");
  refused("behind one with a name", "{{ range(stop=1, 2) }}");
  refused("without a call", "{% call x %}{% endcall %}");
  refused("the escape \\N", "{{ '\\N{DASH}' }}");
  refused("the escape \\ud800", "{{ '\\ud800' }}");
  refused("the number 99999999999999999999", "{{ 99999999999999999999 }}");
  refused("the name \"self\"", "{{ self.x() }}");
}

TEST(JinjaErrors, WhileRendering) {
  const auto refused = [](const char* part, const char* source) {
    expect_refused(ErrorKind::model, part, source);
  };
  refused("line 2: \"x\" is undefined", "\n{{ x.y }}");
  refused("line 1: \"x\" is undefined", "{{ x + 1 }}");
  refused("a dict has no \"a\"", "{{ {}.a.b }}");
  refused("+ between str and int", "{{ 'a' + 1 }}");
  refused("< between int and str", "{{ 1 < 'a' }}");
  refused("// by zero", "{{ 1 // 0 }}");
  refused("is too large", "{{ 9223372036854775807 + 1 }}");
  refused("is too large", "{{ 10 ** 19 }}");
  refused("\"append\" of a list", "{{ [].append(1) }}");
  refused("\"update\" of a dict", "{{ {}.update({}) }}");
  refused("the filter \"replace\": \"old\" is missing", "{{ 'a' | replace }}");
  refused("the filter \"trim\": too many arguments", "{{ 'a' | trim('a', 'b') }}");
  refused("the filter \"join\": there is no parameter \"x\"", "{{ [] | join(x=1) }}");
  refused("the macro \"m\" takes 0 arguments, not 1", "{% macro m() %}{% endmacro %}{{ m(1) }}");
  refused("the macro \"m\" has no parameter \"y\"", "{% macro m(x) %}{% endmacro %}{{ m(y=1) }}");
  refused("3 values for 2 names", "{% set a, b = [1, 2, 3] %}");
  refused("which is not a namespace", "{% set x = 1 %}{% set x.y = 2 %}");
  refused("printing a generator", "{{ [1] | map('string') }}");
  refused("the length of a generator", "{{ [1] | select | length }}");
  refused("tojson of a undefined", "{{ x | tojson }}");
  refused("changing the case of \"\u00e9\"", "{{ '\u00e9' | upper }}");
  refused("the directive %Q", "{{ strftime_now('%Q') }}");
  refused("a dict as a key", "{{ {{}: 1} }}");
  refused("cycler is not supported", "{{ cycler(1) }}");
  expect_refused(ErrorKind::data, "(line 2) refuses the conversation: Roles!",
                 "\n{{ raise_exception('Roles!') }}");
}

TEST(JinjaLimits, EndInTime) {
  const auto refused = [](const char* part, const std::string& source) {
    expect_refused(ErrorKind::model, part, source);
  };
  const auto repeat = [](const std::string& text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
  };
  refused("more than 100000 items", "{{ range(1000000000000) | list }}");
  refused("more than 10000000 steps",
          "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
  // Few lists in memory, and endless ones to whoever walks over them.
  const auto doubled = [](const std::string& pair, int times, const std::string& rest) {
    return "{% set n = namespace(a=(1,), b=(1,)) %}{% for i in range(" + std::to_string(times) +
           ") %}{% set x = n.a %}{% set n.a = " + pair +
           " %}{% set x = n.b %}{% set n.b = " + pair + " %}{% endfor %}" + rest;
  };
  for (const char* pair : {"[x, x]", "(x, x)", "{1: x, 2: x}"}) {
    refused("holds more than 67108864 others", doubled(pair, 60, "{{ n.a == n.b }}"));
  }
  refused("more than 10000000 steps",
          doubled("[x, x]", 22, "{% for i in range(99999) %}{{ n.a is none }}{% endfor %}"));
  EXPECT_EQ(render(doubled("[x, x]", 15, "{{ n.a == n.b }}")), "True");
  refused("holds more than 67108864 others", "{{ ['a' * 60000000] * 1000 }}");
  refused("64 MiB", "{{ 'abc' * 1000000000 }}");
  refused("a list of more than 1048576 items", "{{ ('a' * 60000000) | list }}");
  refused("a list of more than 1048576 items", "{{ ('a ' * 30000000).split() }}");
  refused("a list of more than 1048576 items", "{{ ('a,' * 30000000).split(',') }}");
  refused("a list of more than 1048576 items", "{{ ('a\\n' * 30000000).splitlines() }}");
  refused("a list of more than 1048576 items", "{{ [1] * 1000000 + [1] * 1000000 }}");
  refused("1024 MiB", "{% for i in range(9999) %}{% set x = ('a' * 60000000) %}{% endfor %}");
  refused("64 MiB",
          "{% set n = namespace(s='ab') %}{% for i in range(99) %}"
          "{% set n.s = n.s ~ n.s %}{% endfor %}");
  refused("1024 MiB",
          "{% set s = 'a' * 50000000 %}{% for i in range(99) %}{{ (s ~ i) | length }}"
          "{% endfor %}");
  refused("1024 MiB",
          "{{ (['a' * 60000000] * 30) | map('replace', 'b', 'c') | select('none') | list }}");
  // Half of its characters are the template's.
  refused("1024 MiB", "{{ ([('a' ~ 1) * 500000] * 80) | sort | length }}");
  refused("1024 MiB", "{{ ([[1] * 1000] * 1000) | sum(start=[]) | length }}");
  refused("items", "{{ [1] * 1000000000 }}");
  refused("deep", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
  refused(
      "values nested more than 100 deep",
      "{% set n = namespace(l=[]) %}{% for i in range(999) %}{% set n.l = [n.l] %}{% endfor %}");
  refused("values nested more than 100 deep",
          "{% set n = namespace(l=[]) %}{% for i in range(999) %}"
          "{% set n.l = [1] | map('default', n.l) %}{% endfor %}");
  refused("values nested more than 100 deep",
          "{% set n = namespace(l=[]) %}{% for i in range(999) %}{% for x in [n.l] %}"
          "{% set n.l = loop %}{% endfor %}{% endfor %}");
  refused("nested more than 100 deep", "{{ " + repeat("(", 200));
  refused("nested more than 100 deep", "{{ " + repeat("-", 900) + "1 }}");
  refused("nested more than 100 deep", "{{ " + repeat("not ", 900) + "1 }}");
  refused("a tag of more than 1000 tokens", "{{ 1" + repeat(" + 1", 5000) + " }}");
  refused("tags nested more than 60 deep", repeat("{% if 1 %}", 5000));
  // Namespaces that hold one another and macros that outlive their loops: nothing leaks or dangles.
  EXPECT_EQ(render("{% set n = namespace() %}{% set n.self_ = n %}{% for i in range(3) %}"
                   "{% macro m() %}{{ i }}{% endmacro %}{% set n.m = m %}{% endfor %}{{ n.m() }}"),
            "2");
}

// As in Python, whose whole numbers have no -0.
TEST(JinjaFilters, RoundUpAndDownToNoNegativeZero) {
  EXPECT_EQ(render("{{ -0.3 | round(0, 'ceil') }} {{ -0.04 | round(1, 'ceil') }}"), "0.0 0.0");
  EXPECT_EQ(render("{{ -0.0 | round(0, 'floor') }} {{ -0.3 | round }}"), "0.0 -0.0");
  EXPECT_EQ(render("{{ -1.3 | round(0, 'ceil') }} {{ 1.25 | round(1, 'floor') }}"), "-1.0 1.2");
}

TEST(JinjaScopes, AreThoseOfJinja) {
  EXPECT_EQ(render("{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}"),
            "21");
  EXPECT_EQ(render("{% if true %}{% set x = 2 %}{% endif %}{{ x }}"), "2");
  EXPECT_EQ(render("{% for i in [1, 2] %}{{ x }}{% set x = i %}{% endfor %}", R"({"x": 7})"), "77");
  // A scope's own name hides what was passed from its beginning on, for the scopes within.
  EXPECT_EQ(render("{% for i in [1] %}[{{ x }}]{% endfor %}{% set x = 1 %}", R"({"x": 7})"), "[]");
  EXPECT_EQ(render("{{ x }}{% for i in [1] %}[{{ x }}]{% endfor %}{% set x = 1 %}", R"({"x": 7})"),
            "7[7]");
  EXPECT_EQ(render("{% macro m(a, b=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{% set c = 3 %}"
                   "{{ m(1) }}{{ m(b=2) }}"),
            "11323");
  EXPECT_EQ(render("{% set x %}{% set y = 1 %}{{ y }}{% endset %}{{ x }}{{ y }}"), "1");
  EXPECT_EQ(render("{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", R"({"a": 5})"),
            "155");
}

// Python's json.dumps() escapes all but what is printable in ASCII.
TEST(JinjaJson, EscapesAsPython) {
  const auto json = [](const std::string& escapes) {
    return render_text("{{ x | tojson(ensure_ascii=" + escapes + ") }}",
                       {{"x", Value::text("~\x7f\u00e9")}})
        .bytes();
  };
  EXPECT_EQ(json("true"), R"("~\u007f\u00e9")");
  EXPECT_EQ(json("false"), "\"~\x7f\u00e9\"");
}

TEST(JinjaTime, IsWhatTheCallerPasses) {
  const auto at = [](const char* format, const DateTime& time) {
    return Template::parse(std::string("{{ strftime_now('") + format + "') }}")
        .render({}, time)
        .bytes();
  };
  EXPECT_EQ(at("%d %b %Y", {2024, 7, 26, 0, 0, 0}), "26 Jul 2024");
  EXPECT_EQ(at("%A %B %j %y %I %p", {2000, 2, 29, 0, 0, 0}), "Tuesday February 060 00 12 AM");
  EXPECT_EQ(at("%-d.%-m. %e %H:%M:%S %F %%", {1999, 12, 5, 23, 4, 5}),
            "5.12.  5 23:04:05 1999-12-05 %");
}

TEST(JinjaTexts, AreSearchedFromTheirEnds) {
  EXPECT_EQ(render("{{ 'aaaa'.rfind('aa') }} {{ 'éaé'.rfind('é') }} {{ 'ab'.rfind('') }} "
                   "{{ ''.find('') }} {{ ''.rfind('a') }} {{ 'a'.find('ab') }}"),
            "2 2 2 0 -1 -1");
  EXPECT_EQ(render("{{ 'aaa'.rsplit('aa') }}{{ 'aaa'.split('aa') }}{{ 'a,b,c'.rsplit(',', 1) }}"
                   "{{ ',a,'.rsplit(',') }}{{ ''.rsplit(',') }}"),
            "['a', '']['', 'a']['a,b', 'c']['', 'a', '']['']");
  // Characters, not bytes: é and ê have the first in common.
  EXPECT_EQ(render("{{ 'êxé'.strip('é') }} {{ 'abcba'.strip('ab') }} {{ 'a'.strip('') }}"),
            "êx c a");
}

}  // namespace
}  // namespace jackscrew::jinja
