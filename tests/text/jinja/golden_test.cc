// Templates against transformers: tools/golden_chat_templates.py wrote what they must give.
#include "tests/text/jinja/fixture.h"

namespace jackscrew::jinja {
namespace {

using Json = nlohmann::ordered_json;

// The bytes that are written within {% generation %}, as a string of 0 and 1.
std::string generated(const Text& text) {
  std::string mask;
  for (const Text::Run& run : text.runs()) {
    mask.resize(run.end, (run.origin & kGenerated) != 0 ? '1' : '0');
  }
  return mask;
}

std::string generated(const Json& expected) {
  std::string mask(expected["text"].get<std::string>().size(), '0');
  for (const Json& span : expected["generated"]) {
    for (size_t i = span[0].get<size_t>(); i < span[1].get<size_t>(); ++i) mask[i] = '1';
  }
  return mask;
}

void expect_as(const Json& expected, const Template& parsed, const Variables& variables) {
  if (expected.contains("refused")) {
    expect_error(ErrorKind::data, expected["refused"].get<std::string>(),
                 [&] { parsed.render(variables, kNow); });
  } else if (expected.contains("error")) {
    expect_error(ErrorKind::model, "chat template, line", [&] { parsed.render(variables, kNow); });
  } else {
    const Text text = parsed.render(variables, kNow);
    EXPECT_EQ(text.bytes(), expected["text"].get<std::string>());
    EXPECT_EQ(generated(text), generated(expected));
  }
}

TEST(Jinja, RendersAsTransformers) {
  const Json golden = template_golden();
  const auto templates = all_templates();
  ASSERT_EQ(golden["templates"].size(), templates.size());
  for (const auto& [name, results] : golden["templates"].items()) {
    const Template parsed = Template::parse(templates.at(name));
    ASSERT_EQ(results.size(), golden["conversations"].size());
    for (size_t i = 0; i < results.size(); ++i) {
      const Json& conversation = golden["conversations"][i];
      SCOPED_TRACE(name + ": " + conversation["name"].get<std::string>());
      Json variables = golden["variables"];
      variables.update(conversation["variables"]);
      variables["messages"] = conversation["messages"];
      expect_as(results[i], parsed, variables_of(variables));
    }
  }
}

}  // namespace
}  // namespace jackscrew::jinja
