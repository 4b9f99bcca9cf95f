#include "text/tokenizer/tokenizer_config.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <unordered_map>

#include "base/text.h"
#include "text/tokenizer/tokenizer_parts.h"

namespace jackscrew {

namespace {

using Json = nlohmann::json;

constexpr const char* kDecoder = "added_tokens_decoder";
// In the order in which transformers adds tokens that the vocabulary lacks; the lists come after
// them.
constexpr std::array<const char*, 7> kRoles = {"bos_token", "eos_token", "unk_token", "sep_token",
                                               "pad_token", "cls_token", "mask_token"};
constexpr std::array<const char*, 2> kLists = {"extra_special_tokens", "additional_special_tokens"};

// A vocabulary that finds tokens by their text.
class Vocabulary {
 public:
  explicit Vocabulary(TokenizerData& data) : data_(data) {
    ids_.reserve(data.tokens.size());
    for (size_t i = 0; i < data.tokens.size(); ++i) {
      const bool used = data.kinds.empty() || data.kinds[i] != TokenKind::unused;
      if (used) ids_.emplace(data.tokens[i], static_cast<int64_t>(i));
    }
  }

  int64_t size() const { return std::ssize(data_.tokens); }

  std::optional<int64_t> find(const std::string& token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

  bool is_added(int64_t id) const {
    if (id < 0 || id >= std::ssize(data_.kinds)) return false;
    const TokenKind kind = data_.kinds[static_cast<size_t>(id)];
    return kind == TokenKind::special || kind == TokenKind::added;
  }

  void set_added(const Json& description, int64_t id) {
    set_added_token(data_, description, id);
    ids_.emplace(description.at("content").get<std::string>(), id);
  }

 private:
  TokenizerData& data_;
  std::unordered_map<std::string, int64_t> ids_;
};

// In these files a token is its text, or an object that holds it.
bool is_token(const Json& value) {
  return value.is_string() ||
         (value.is_object() && value.contains("content") && value.at("content").is_string());
}

std::string content_of(const Json& token, std::string_view key) {
  if (!is_token(token)) {
    fail(ErrorKind::model, "{} is {}, expected a text or an object with its \"content\"", key,
         token.type_name());
  }
  return (token.is_object() ? token.at("content") : token).get<std::string>();
}

// added_tokens_decoder: descriptions of tokens by id. They replace those of added tokens in the
// vocabulary.
void read_decoder(const Json& decoder, Vocabulary& vocabulary) {
  std::map<int64_t, const Json*> by_id;
  for (const auto& [key, description] : decoder.items()) {
    const auto id = parse_int(key);
    if (!id) fail(ErrorKind::model, "{} has the id \"{}\"", kDecoder, key);
    if (!description.is_object()) {
      fail(ErrorKind::model, "{}: the entry of id {} is not an object", kDecoder, key);
    }
    by_id[*id] = &description;
  }
  for (const auto& [id, description] : by_id) {
    const std::string content = content_of(*description, kDecoder);
    const auto found = vocabulary.find(content);
    if (found ? *found != id : id > vocabulary.size()) {
      fail(ErrorKind::model, "{} gives the token \"{}\" the id {}, the vocabulary {}", kDecoder,
           content, id, found.value_or(vocabulary.size()));
    }
    vocabulary.set_added(*description, id);
  }
}

// Makes the token that `key` names a special one and returns its id. A token that is needed must
// already be in the vocabulary.
int32_t set_named_token(Vocabulary& vocabulary, const Json& token, const char* key, bool needed) {
  const std::string content = content_of(token, key);
  const auto found = vocabulary.find(content);
  if (!found && needed) fail_missing_token(content, key);
  const int64_t id = found.value_or(vocabulary.size());
  if (!found || !vocabulary.is_added(id)) {
    Json description = token.is_object() ? token : Json{{"content", content}};
    description["special"] = true;
    vocabulary.set_added(description, id);
  }
  return static_cast<int32_t>(id);
}

bool is_role(std::string_view key) {
  return std::find(kRoles.begin(), kRoles.end(), key) != kRoles.end();
}

void read_named_tokens(const Json& config, TokenizerData& data, Vocabulary& vocabulary) {
  const std::map<std::string_view, int32_t*> kept = {{"bos_token", &data.bos},
                                                     {"eos_token", &data.eos},
                                                     {"unk_token", &data.unk},
                                                     {"pad_token", &data.pad}};
  // The second list is the older name of the first.
  const char* list = is_null(config, kLists[0]) ? kLists[1] : kLists[0];
  const Json extra = is_null(config, list) ? Json() : config.at(list);
  // In place of a list, an object names tokens as the keys beside it do, and goes before those.
  Json named = config;
  if (extra.is_object()) {
    for (const auto& [key, token] : extra.items()) {
      if (!token.is_null()) named[key] = token;
    }
  }
  for (const char* role : kRoles) {
    if (is_null(named, role)) continue;
    const Json& token = named.at(role);
    // A text can be encoded without padding and the others, but not without these.
    const bool needed = kept.contains(role) && std::string_view(role) != "pad_token";
    const int32_t id = set_named_token(vocabulary, token, role, needed);
    const auto found = kept.find(role);
    (found != kept.end() ? *found->second : data.named_tokens[role]) = id;
  }
  if (!extra.is_object()) {
    for (const Json& token : extra) set_named_token(vocabulary, token, list, false);
  }
  // Tokens for the model's own purposes, such as image_token. They must be in the vocabulary, since
  // the order in which they would be added is lost; one member of the object may be the only one.
  const int64_t size = vocabulary.size();
  for (const auto& [key, token] : named.items()) {
    const bool has_ending = key.ends_with("_token");
    const bool is_name = has_ending || extra.contains(key);
    if (!is_name || is_role(key) || !is_token(token)) continue;
    const bool needed = has_ending || vocabulary.size() > size;
    data.named_tokens[key] = set_named_token(vocabulary, token, key.c_str(), needed);
  }
}

void read_prefix_space(const Json& config, TokenizerData& data) {
  const bool prefix = flag(config, "add_prefix_space", data.leading_space != LeadingSpace::keep);
  data.leading_space = prefix ? LeadingSpace::drop_one : LeadingSpace::keep;
  if (!flag(config, "legacy", true)) {
    using Prefix = PreTokenizerStep::Prefix;
    data.normalizer.clear();
    data.pre_tokenizer = {{PreTokenizerStep::Kind::metaspace, std::string(kSpaceMark),
                           prefix ? Prefix::at_begin : Prefix::never, false}};
  } else if (!prefix) {
    std::erase_if(data.normalizer, [](const NormalizerStep& step) {
      return step.kind == NormalizerStep::Kind::prepend;
    });
  }
}

void read_templates(const Json& config, TokenizerData& data) {
  if (is_null(config, "chat_template")) return;
  const Json& chat = config.at("chat_template");
  data.chat_template.clear();
  data.tool_template.clear();
  if (chat.is_string()) {
    data.chat_template = chat.get<std::string>();
    return;
  }
  const auto has_text = [](const Json& object, const char* key) {
    return object.is_object() && object.contains(key) && object.at(key).is_string();
  };
  for (const Json& named : chat) {  // several templates, each with a name
    if (!chat.is_array() || !has_text(named, "name") || !has_text(named, "template")) {
      fail(ErrorKind::model, "chat_template is neither a text nor a list of named texts");
    }
    const auto name = named.at("name").get<std::string>();
    if (name == "default") data.chat_template = named.at("template").get<std::string>();
    if (name == "tool_use") data.tool_template = named.at("template").get<std::string>();
  }
}

// special_tokens_map.json: its roles take precedence over the configuration's, the model's own
// tokens do not, and of lists only the new one is joined to the configuration's.
void merge_special_tokens(Json& config, const Json& map) {
  for (const auto& [key, value] : map.items()) {
    Json& kept = config[key];
    if (key == kLists[0] && value.is_array() && kept.is_array()) {
      for (const Json& token : value) {
        if (std::find(kept.begin(), kept.end(), token) == kept.end()) kept.push_back(token);
      }
    } else if (kept.is_null() || is_role(key) || key == kLists[0]) {
      kept = value;
    }
  }
}

// added_tokens.json maps tokens to ids. Those that are not yet added tokens of the vocabulary
// become the configuration's added_tokens_decoder.
void merge_added_tokens(Json& config, const Json& tokens, const Vocabulary& vocabulary) {
  std::set<std::string> named;
  const auto name = [&](const Json& token) {
    if (is_token(token)) named.insert(content_of(token, kDecoder));
  };
  for (const char* role : kRoles) {
    if (!is_null(config, role)) name(config.at(role));
  }
  if (!is_null(config, kLists[0])) {
    for (const Json& token : config.at(kLists[0])) name(token);
  }
  Json decoder = Json::object();
  for (const auto& [token, value] : tokens.items()) {
    const int64_t id = integer_of(value);
    if (vocabulary.is_added(id) && vocabulary.find(token) == id) continue;
    decoder[std::to_string(id)] = {{"content", token}, {"special", named.contains(token)}};
  }
  config[kDecoder] = std::move(decoder);
}

// Merges the files; adds the name of each that is used to `names`.
Json merged_config(const TokenizerConfigFiles& files, const Vocabulary& vocabulary,
                   std::string& names) {
  const auto open = [&](const NamedText& file) {
    names += (names.empty() ? "" : " with ") + file.name;
    return parse_object(file.text, file.name);
  };
  Json config = files.config ? open(*files.config) : Json::object();
  if (!is_null(config, kDecoder)) return config;
  // The configuration's own list counts by its new name, and goes before one of the map's.
  if (is_null(config, kLists[0]) && !is_null(config, kLists[1])) {
    config[kLists[0]] = std::move(config[kLists[1]]);
  }
  if (files.special_tokens_map) merge_special_tokens(config, open(*files.special_tokens_map));
  if (files.added_tokens) {
    const Json tokens = open(*files.added_tokens);
    with_file_name(files.added_tokens->name,
                   [&] { merge_added_tokens(config, tokens, vocabulary); });
  }
  return config;
}

}  // namespace

void apply_tokenizer_config(TokenizerData& data, const TokenizerConfigFiles& files,
                            VocabularyFile beside) {
  Vocabulary vocabulary(data);
  std::string names;
  const Json config = merged_config(files, vocabulary, names);
  with_file_name(names, [&] {
    if (!is_null(config, kDecoder)) read_decoder(config.at(kDecoder), vocabulary);
    if (flag(config, "split_special_tokens", false)) fail_unsupported("split_special_tokens");
    const int32_t added_bos = data.bos;
    read_named_tokens(config, data, vocabulary);
    if (data.add_bos) data.bos = added_bos;  // the token that is actually put before a text
    if (beside == VocabularyFile::tokenizer_model) {
      data.add_bos = flag(config, "add_bos_token", data.add_bos) && data.bos >= 0;
      if (flag(config, "add_eos_token", false)) fail_unsupported("add_eos_token");
      if (data.spelling == Spelling::text) read_prefix_space(config, data);
      // There is no normalizer but the one for SentencePiece's spaces, so tokens are matched in raw
      // text.
      data.normalized_literals.clear();
    }
    read_templates(config, data);
  });
}

void apply_config_templates(TokenizerData& data, const NamedText& file) {
  const Json config = parse_object(file.text, file.name);
  with_file_name(file.name, [&] { read_templates(config, data); });
}

}  // namespace jackscrew
