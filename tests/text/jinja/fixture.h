// What the tests of templates share.
#pragma once

#include <map>
#include <string>

#include "tests/support/paths.h"
#include "tests/text/fixture.h"
#include "text/chat/chat_template.h"
#include "text/jinja/json.h"
#include "text/jinja/template.h"

namespace jackscrew::jinja {

inline constexpr DateTime kNow{2024, 7, 6, 13, 5, 9};  // as in tools/golden_chat_templates.py

// An object's members as variables of a template; their texts are content.
inline Variables variables_of(const nlohmann::ordered_json& object) {
  Variables variables;
  for (const auto& [name, value] : object.items()) variables.emplace_back(name, from_json(value));
  return variables;
}

inline Text render_text(const std::string& source, const Variables& variables = {}) {
  return Template::parse(source).render(variables, kNow);
}

inline std::string render(const std::string& source, const std::string& json = "{}") {
  return render_text(source, variables_of(nlohmann::ordered_json::parse(json))).bytes();
}

// A chat format that has a name, with <s> and </s>.
inline ChatFormat named_format(const char* name, const std::string& own_template = {}) {
  TokenizerData data;
  data.tokens = {"<s>", "</s>"};
  data.bos = 0;
  data.eos = 1;
  data.chat_template = own_template;
  return chat_format(name, data, kNow);
}
// One by a model's own template.
inline ChatFormat own_format(const std::string& source) {
  return named_format("auto", source);
}

// Expects an Error of `kind` whose message holds `part`.
inline void expect_refused(ErrorKind kind, const std::string& part, const std::string& source,
                           const std::string& json = "{}") {
  SCOPED_TRACE(source);
  expect_error(kind, part, [&] { render(source, json); });
}

// The templates of tests/text/jinja/templates/, by name, and SmolLM2's own.
inline std::map<std::string, std::string> all_templates() {
  std::map<std::string, std::string> templates;
  templates["smollm2"] = golden()["template"].get<std::string>();
  const fs::path directory = fs::path(kTestData) / "text" / "jinja" / "templates";
  for (const auto& entry : fs::directory_iterator(directory)) {
    templates[entry.path().stem().string()] = read_text(entry.path());
  }
  return templates;
}

inline nlohmann::ordered_json template_golden() {
  const fs::path path = fs::path(kTestData) / "text" / "jinja" / "golden.json";
  return nlohmann::ordered_json::parse(read_text(path));
}

}  // namespace jackscrew::jinja
