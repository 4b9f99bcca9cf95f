// Templates and conversations that nobody meant to write: a refusal at worst.
#include <random>

#include "tests/text/jinja/fixture.h"

namespace jackscrew::jinja {
namespace {

// A piece of a template cut out, doubled, exchanged for one of another template, or a byte changed.
std::string mutated(std::string text, const std::string& other, std::mt19937& random) {
  const auto below = [&](size_t limit) { return random() % std::max<size_t>(limit, 1); };
  for (size_t i = 0; i < 1 + below(4); ++i) {
    const size_t at = below(text.size());
    const size_t count = below(30);
    switch (below(5)) {
      case 0:
        text.erase(at, count);
        break;
      case 1:
        text.insert(at, text.substr(below(text.size()), count));
        break;
      case 2:
        text.replace(at, count, other, below(other.size()), count);
        break;
      case 3:
        if (!text.empty()) text[at] = static_cast<char>(random());
        break;
      default:
        constexpr const char* kPieces[] = {"{{",  "}}", "{%-",      "-%}", "{#", "'",
                                           "[",   ")",  "|",        ".",   "\\", "0x",
                                           "if ", "-",  "\xFF\xC3", "**",  "~"};
        text.insert(at, kPieces[below(std::size(kPieces))]);
    }
  }
  return text;
}

TEST(JinjaHostile, MutatedTemplatesEndInTextOrRefusal) {
  const nlohmann::ordered_json golden = template_golden();
  std::vector<std::string> templates;
  for (const auto& [name, text] : all_templates()) templates.push_back(text);
  std::mt19937 random(1);
  int rendered = 0;
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    const std::string& other = templates[random() % templates.size()];
    const std::string text =
        mutated(templates[static_cast<size_t>(round) % templates.size()], other, random);
    const auto& conversation = golden["conversations"][random() % golden["conversations"].size()];
    nlohmann::ordered_json variables = golden["variables"];
    variables.update(conversation["variables"]);
    variables["messages"] = conversation["messages"];
    try {
      const Text out = render_text(text, variables_of(variables));
      const size_t covered = out.runs().empty() ? 0 : out.runs().back().end;
      ASSERT_EQ(covered, out.size());
      ++rendered;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(rendered, 400);
  EXPECT_GT(refused, 400);
}

TEST(JinjaHostile, AnyBytes) {
  std::mt19937 random(2);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (size_t i = random() % 60; i > 0; --i) {
      constexpr std::string_view kBytes =
          "{}%#-+ \n'\"[]().|,:=~*/<>!ifforendset0123xeE_\\\xC3\xA9\xFF";
      text += kBytes[random() % kBytes.size()];
    }
    try {
      render_text(text);
    } catch (const Error&) {
    }
  }
}

// What takes time in proportion to the product of two lengths would not end here.
TEST(JinjaHostile, LongTextsAreSearchedInTime) {
  const std::string texts =
      "{% set a = 'a' * 4000000 %}{% set b = 'b' ~ 'a' * 2000000 %}"
      "{% set c = 'a' * 2000000 ~ 'b' %}";
  const auto rendered = [&](const std::string& template_text) {
    return render(texts + template_text);
  };
  EXPECT_EQ(rendered("{{ b in a }} {{ c in a }}"), "False False");
  EXPECT_EQ(rendered("{{ a.find(c) }} {{ a.find(b) }}"), "-1 -1");
  EXPECT_EQ(rendered("{{ a.rfind(c) }} {{ a.rfind(b) }}"), "-1 -1");
  EXPECT_EQ(rendered("{{ a.count(c) }} {{ a.count(b) }}"), "0 0");
  EXPECT_EQ(rendered("{{ a.split(c) | length }} {{ a.split(b) | length }}"), "1 1");
  EXPECT_EQ(rendered("{{ a.rsplit(c) | length }} {{ a.rsplit(b) | length }}"), "1 1");
  EXPECT_EQ(rendered("{{ a.replace(c, '') | length }} {{ a.replace(b, '') | length }}"),
            "4000000 4000000");
  EXPECT_EQ(rendered("{{ a.strip('b' * 2000000 ~ 'a') | length }}"), "0");
}

}  // namespace
}  // namespace jackscrew::jinja
