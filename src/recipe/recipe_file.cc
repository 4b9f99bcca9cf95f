#include "recipe/recipe_file.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace jackscrew {

namespace {

constexpr int64_t kMaxRecipeBytes = int64_t{1} << 20;
// Appended to the text: the YAML library accepts a quote that is never closed if the file ends with
// a line break, and the rest of the recipe would silently become part of one value.
constexpr const char* kEndMark = "# end";
constexpr const char* kShape = "a recipe is a flat list of `key: value` lines";

std::string place(std::string_view name, const YAML::Mark& mark) {
  return mark.is_null() ? std::string(name) : fmt::format("{}:{}", name, mark.line + 1);
}

std::vector<std::string> scalar_items(const YAML::Node& list, const std::string& key,
                                      std::string_view name) {
  std::vector<std::string> items;
  for (const YAML::Node& item : list) {
    if (item.IsNull()) {  // whose mark is that of what follows it
      throw Error(ErrorKind::usage,
                  fmt::format("{}: {} has an empty item, number {}", place(name, list.Mark()), key,
                              items.size() + 1),
                  "write its value, or leave it out");
    }
    if (!item.IsScalar()) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: {} holds something nested", place(name, item.Mark()), key),
                  "a list may hold plain values only");
    }
    items.push_back(item.Scalar());
  }
  return items;
}

// PEFT's rank_pattern and alpha_pattern are maps, each of whose members is an item here.
bool takes_map(std::string_view key) {
  return key.ends_with("_pattern");
}

// The members of a map as items of a list: "down_proj=8".
std::vector<std::string> map_items(const YAML::Node& map, const std::string& key,
                                   std::string_view name) {
  std::vector<std::string> items;
  for (const auto& member : map) {
    if (member.first.IsScalar() && member.second.IsNull()) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: {} has no value for {}", place(name, member.first.Mark()), key,
                              member.first.Scalar()),
                  "write its value, or leave it out");
    }
    if (!member.first.IsScalar() || !member.second.IsScalar()) {
      throw Error(
          ErrorKind::usage,
          fmt::format("{}: {} holds something nested", place(name, member.first.Mark()), key),
          "its map may hold plain values only");
    }
    items.push_back(member.first.Scalar() + "=" + member.second.Scalar());
  }
  return items;
}

// A tag of the user's own, such as !env. YAML's are written with !!, and the library says ? of a
// plain value and ! of a quoted one.
struct OwnTag {
  std::string text;
  YAML::Mark mark;
};

// Records where the last document and the last plain value began, and the first tag that means
// nothing here.
class Places : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { document = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                const std::string&) override {
    value = mark;
    see(tag, mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    see(tag, mark);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    see(tag, mark);
  }
  void OnMapEnd() override {}

  YAML::Mark document = YAML::Mark::null_mark();
  YAML::Mark value = YAML::Mark::null_mark();
  std::optional<OwnTag> own_tag;

 private:
  void see(const std::string& tag, const YAML::Mark& mark) {
    const bool is_known =
        tag.empty() || tag == "?" || tag == "!" || tag.starts_with("tag:yaml.org,2002:");
    if (!is_known && !own_tag) own_tag = OwnTag{tag, mark};
  }
};

[[noreturn]] void refuse_shape(std::string_view name, const YAML::Mark& mark) {
  throw Error(ErrorKind::usage, fmt::format("{}: expected one map of options", place(name, mark)),
              kShape);
}

// YAML has none but tabs and line ends. The library takes some of them for the end of the text.
void refuse_control_characters(std::string_view text, std::string_view name) {
  constexpr std::string_view kAllowed = "\t\n\r";
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte >= 0x20 || kAllowed.find(text[i]) != kAllowed.npos) continue;
    const auto line =
        1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(i), '\n');
    throw Error(ErrorKind::usage,
                fmt::format("{}:{}: not YAML: a control character (byte {})", name, line, byte),
                kShape);
  }
}

// The first document, which must be the only one. YAML::LoadAll() is unusable: if a comma is where
// a document should begin, it finds empty documents endlessly.
YAML::Node only_document(const std::string& text, std::string_view name, Places& places) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  if (parser.HandleNextDocument(places) && parser.HandleNextDocument(places)) {
    refuse_shape(name, places.document);
  }
  return YAML::Load(text);
}

std::vector<Assignment> assignments_of(std::vector<RecipeEntry> entries) {
  std::vector<Assignment> out;
  for (RecipeEntry& entry : entries) {
    if (entry.error) throw Error(*entry.error);
    out.push_back(std::move(entry.assignment));
  }
  return out;
}

// As read_recipe_entries(), of a text in memory.
std::vector<RecipeEntry> parse_recipe_entries(const std::string& text, std::string_view name) {
  refuse_control_characters(text, name);
  YAML::Node document;
  Places places;
  try {
    // After a line's end another one would be a line of its own, which |+ keeps.
    document = only_document(text + (text.ends_with('\n') ? "" : "\n") + kEndMark, name, places);
  } catch (const YAML::Exception& error) {
    if (error.msg == YAML::ErrorMsg::EOF_IN_SCALAR) {
      // The library says where the text ends.
      throw Error(ErrorKind::usage,
                  fmt::format("{}: a quote is opened here or below, and never closed",
                              place(name, places.value)),
                  "a value that begins with \" or ' ends with it");
    }
    throw Error(ErrorKind::usage,
                fmt::format("{}: not YAML: {}", place(name, error.mark), error.msg), kShape);
  }
  if (places.own_tag) {
    throw Error(ErrorKind::usage,
                fmt::format("{}: the tag {} means nothing here", place(name, places.own_tag->mark),
                            places.own_tag->text),
                "write the value itself, or set it on the command line");
  }
  std::vector<RecipeEntry> out;
  if (document.IsNull()) return out;
  if (!document.IsMap()) refuse_shape(name, document.Mark());
  for (const auto& member : document) {
    const YAML::Node& key = member.first;
    const YAML::Node& value = member.second;
    if (!key.IsScalar()) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: a key is not a plain word", place(name, key.Mark())), kShape);
    }
    RecipeEntry entry{{key.Scalar(), {}, place(name, key.Mark()), std::nullopt}, std::nullopt};
    Assignment& assignment = entry.assignment;
    if (value.IsNull()) continue;
    if (assignment.name == "<<") {
      entry.error =
          Error(ErrorKind::usage,
                fmt::format("{}: << is a merge key, and those are not read", assignment.origin),
                "write what it stands for: one `key: value` line for each setting");
    } else if (value.IsScalar()) {
      assignment.text = value.Scalar();
    } else if (value.IsSequence() || takes_map(assignment.name)) {
      const auto& items_of = value.IsSequence() ? scalar_items : map_items;
      try {
        assignment.items = items_of(value, assignment.name, name);
      } catch (const Error& error) {
        entry.error = error;
      }
    } else {
      entry.error = Error(
          ErrorKind::usage,
          fmt::format("{}: {} holds a nested map", assignment.origin, assignment.name), kShape);
    }
    out.push_back(std::move(entry));
  }
  return out;
}

}  // namespace

bool is_recipe_name(std::string_view name) {
  return name.ends_with(".yaml") || name.ends_with(".yml");
}

std::vector<Assignment> parse_recipe_text(const std::string& text, std::string_view name) {
  return assignments_of(parse_recipe_entries(text, name));
}

std::vector<RecipeEntry> read_recipe_entries(const fs::path& path) {
  std::string text;
  try {
    text = read_text(path, kMaxRecipeBytes);
  } catch (const Error& error) {
    throw Error(ErrorKind::usage, error.what(), error.hint());
  }
  return parse_recipe_entries(text, path.string());
}

std::vector<Assignment> read_recipe_file(const fs::path& path) {
  return assignments_of(read_recipe_entries(path));
}

}  // namespace jackscrew
