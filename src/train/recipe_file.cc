#include "train/recipe_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <utility>

#include "base/error.h"

namespace jackscrew {

namespace {

constexpr int64_t kMaxRecipeBytes = int64_t{1} << 20;
// Put behind the text: the YAML library lets a quote that is never closed pass where the file ends
// with a line break, and the rest of the recipe would silently become part of one value.
constexpr const char* kEndMark = "\n# end";
constexpr const char* kShape = "a recipe is a flat list of `key: value` lines";

std::string place(std::string_view name, const YAML::Mark& mark) {
  return mark.is_null() ? std::string(name) : fmt::format("{}:{}", name, mark.line + 1);
}

std::vector<std::string> scalar_items(const YAML::Node& list, const std::string& key,
                                      std::string_view name) {
  std::vector<std::string> items;
  for (const YAML::Node& item : list) {
    if (!item.IsScalar()) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: {} holds something nested", place(name, item.Mark()), key),
                  "a list may hold plain values only");
    }
    items.push_back(item.Scalar());
  }
  return items;
}

}  // namespace

std::vector<Assignment> parse_recipe_text(const std::string& text, std::string_view name) {
  std::vector<YAML::Node> documents;
  try {
    documents = YAML::LoadAll(text + kEndMark);
  } catch (const YAML::Exception& error) {
    if (error.msg == YAML::ErrorMsg::EOF_IN_SCALAR) {
      throw Error(ErrorKind::usage, fmt::format("{}: a quote is opened and never closed", name));
    }
    throw Error(ErrorKind::usage,
                fmt::format("{}: not YAML: {}", place(name, error.mark), error.msg), kShape);
  }
  std::vector<Assignment> out;
  if (documents.empty() || documents[0].IsNull()) return out;
  if (documents.size() > 1 || !documents[0].IsMap()) {
    throw Error(ErrorKind::usage,
                fmt::format("{}: expected one map of options",
                            place(name, documents[documents.size() - 1].Mark())),
                kShape);
  }
  for (const auto& entry : documents[0]) {
    const YAML::Node& key = entry.first;
    const YAML::Node& value = entry.second;
    if (!key.IsScalar()) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: a key is not a plain word", place(name, key.Mark())), kShape);
    }
    Assignment assignment{key.Scalar(), {}, place(name, key.Mark()), std::nullopt};
    if (value.IsNull()) continue;
    if (value.IsScalar()) {
      assignment.text = value.Scalar();
    } else if (value.IsSequence()) {
      assignment.items = scalar_items(value, assignment.name, name);
    } else {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: {} holds a nested map", assignment.origin, assignment.name),
                  kShape);
    }
    out.push_back(std::move(assignment));
  }
  return out;
}

std::vector<Assignment> read_recipe_file(const fs::path& path) {
  std::string text;
  try {
    text = read_text(path, kMaxRecipeBytes);
  } catch (const Error& error) {
    throw Error(ErrorKind::usage, error.what(), error.hint());
  }
  return parse_recipe_text(text, path.string());
}

}  // namespace jackscrew
