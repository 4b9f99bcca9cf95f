#include "text/tokenizer_config.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/text.h"
#include "text/tokenizer_parts.h"

namespace jackscrew {

namespace {

using Json = nlohmann::json;

constexpr const char* kDecoder = "added_tokens_decoder";
// In the order in which transformers adds those that a vocabulary lacks; after them come the lists.
constexpr std::array<const char*, 7> kRoles = {"bos_token", "eos_token", "unk_token", "sep_token",
                                               "pad_token", "cls_token", "mask_token"};
constexpr std::array<const char*, 2> kLists = {"extra_special_tokens", "additional_special_tokens"};

// The ids of a vocabulary's tokens, gathered when first asked for.
class TokenIds {
 public:
  explicit TokenIds(const TokenizerData& data) : data_(data) {}

  std::optional<int64_t> find(const std::string& token) {
    for (; known_ < data_.tokens.size(); ++known_) {
      if (data_.kinds.empty() || data_.kinds[known_] != TokenKind::unused) {
        ids_.emplace(data_.tokens[known_], static_cast<int64_t>(known_));
      }
    }
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  const TokenizerData& data_;
  size_t known_ = 0;
  std::unordered_map<std::string, int64_t> ids_;
};

// A token in these files is its text or an object that holds it.
std::string content_of(const Json& token) {
  return token.is_object() ? token.at("content").get<std::string>() : token.get<std::string>();
}

bool is_token(const Json& value) {
  return value.is_string() || (value.is_object() && value.contains("content"));
}

// added_tokens_decoder: descriptions of tokens by id. A token that is in the vocabulary as an added
// one is described anew.
void read_decoder(const Json& decoder, TokenizerData& data, TokenIds& ids) {
  std::map<int64_t, const Json*> by_id;
  for (const auto& [key, description] : decoder.items()) {
    const auto id = parse_int(key);
    if (!id) fail(ErrorKind::model, "{} has the id \"{}\"", kDecoder, key);
    by_id[*id] = &description;
  }
  for (const auto& [id, description] : by_id) {
    const auto content = description->at("content").get<std::string>();
    const auto found = ids.find(content);
    const auto count = static_cast<int64_t>(data.tokens.size());
    if (found ? *found != id : id > count) {
      fail(ErrorKind::model, "{} gives the token \"{}\" the id {}, the vocabulary {}", kDecoder,
           content, id, found.value_or(count));
    }
    set_added_token(data, *description, id);
  }
}

bool is_added(const TokenizerData& data, int64_t id) {
  if (id < 0 || id >= std::ssize(data.kinds)) return false;
  const TokenKind kind = data.kinds[static_cast<size_t>(id)];
  return kind == TokenKind::special || kind == TokenKind::added;
}

// Makes a named token a special one and returns its id.
int32_t set_named_token(TokenizerData& data, TokenIds& ids, const Json& token) {
  const std::string content = content_of(token);
  const auto found = ids.find(content);
  const int64_t id = found.value_or(static_cast<int64_t>(data.tokens.size()));
  if (!found || !is_added(data, id)) {
    Json description = token.is_object() ? token : Json{{"content", content}};
    description["special"] = true;
    set_added_token(data, description, id);
  }
  return static_cast<int32_t>(id);
}

bool is_role(std::string_view key) {
  return std::find(kRoles.begin(), kRoles.end(), key) != kRoles.end();
}

// Tokens for purposes of the model alone, such as image_token, which must be there: the order in
// which others would be added is lost.
void read_own_tokens(const Json& object, TokenizerData& data, TokenIds& ids) {
  for (const auto& [key, token] : object.items()) {
    if (!key.ends_with("_token") || is_role(key) || !is_token(token)) continue;
    token_id(data, content_of(token), key.c_str());
    set_named_token(data, ids, token);
  }
}

void read_named_tokens(const Json& config, TokenizerData& data, TokenIds& ids) {
  const std::map<std::string_view, int32_t*> kept = {{"bos_token", &data.bos},
                                                     {"eos_token", &data.eos},
                                                     {"unk_token", &data.unk},
                                                     {"pad_token", &data.pad}};
  for (const char* role : kRoles) {
    if (is_null(config, role)) continue;
    const Json& token = config.at(role);
    // A text can do without padding and the others, but not without these.
    const bool needed = kept.contains(role) && std::string_view(role) != "pad_token";
    if (needed) token_id(data, content_of(token), role);
    const int32_t id = set_named_token(data, ids, token);
    if (const auto found = kept.find(role); found != kept.end()) *found->second = id;
  }
  for (const char* list : kLists) {
    if (is_null(config, list)) continue;
    if (config.at(list).is_object()) {
      read_own_tokens(config.at(list), data, ids);
    } else {
      for (const Json& token : config.at(list)) set_named_token(data, ids, token);
    }
    break;  // the second is the first's older name
  }
  read_own_tokens(config, data, ids);
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
  if (chat.is_string()) {
    data.chat_template = chat.get<std::string>();
    return;
  }
  for (const Json& named : chat) {  // several templates, each with a name
    const auto name = named.at("name").get<std::string>();
    if (name == "default") data.chat_template = named.at("template").get<std::string>();
    if (name == "tool_use") data.tool_template = named.at("template").get<std::string>();
  }
}

}  // namespace

void apply_tokenizer_config(TokenizerData& data, std::string_view text,
                            const std::string& file_name, VocabularyFile beside) {
  const Json config = parse_object(text, file_name);
  with_file_name(file_name, [&] {
    TokenIds ids(data);
    if (!is_null(config, kDecoder)) read_decoder(config.at(kDecoder), data, ids);
    if (flag(config, "split_special_tokens", false)) fail_unsupported("split_special_tokens");
    const int32_t added_bos = data.bos;
    read_named_tokens(config, data, ids);
    if (data.add_bos) data.bos = added_bos;  // what is really put before a text
    if (beside == VocabularyFile::tokenizer_model) {
      data.add_bos = flag(config, "add_bos_token", data.add_bos) && data.bos >= 0;
      if (flag(config, "add_eos_token", false)) fail_unsupported("add_eos_token");
      if (data.spelling == Spelling::text) read_prefix_space(config, data);
    }
    read_templates(config, data);
  });
}

std::string with_special_tokens_map(const std::string& config, std::string_view text,
                                    const std::string& file_name) {
  Json out = parse_object(config, "tokenizer_config.json");
  if (!is_null(out, kDecoder)) return config;
  const Json map = parse_object(text, file_name);
  for (const auto& [key, value] : map.items()) {
    if (!value.is_array()) {
      out[key] = value;
      continue;
    }
    Json& list = out[key];
    if (!list.is_array()) list = Json::array();
    for (const Json& token : value) {
      if (std::find(list.begin(), list.end(), token) == list.end()) list.push_back(token);
    }
  }
  return dump_json(out);
}

std::string with_added_tokens(const std::string& config, const TokenizerData& data,
                              std::string_view text, const std::string& file_name) {
  Json out = parse_object(config, "tokenizer_config.json");
  if (!is_null(out, kDecoder)) return config;
  const Json ids = parse_object(text, file_name);
  with_file_name(file_name, [&] {
    std::set<std::string> named;
    for (const char* role : kRoles) {
      if (!is_null(out, role)) named.insert(content_of(out.at(role)));
    }
    for (const char* list : kLists) {
      if (is_null(out, list)) continue;
      for (const Json& token : out.at(list)) {
        if (is_token(token)) named.insert(content_of(token));
      }
    }
    Json decoder = Json::object();
    for (const auto& [token, value] : ids.items()) {
      const int64_t id = integer_of(value);
      if (is_added(data, id) && data.tokens[static_cast<size_t>(id)] == token) continue;
      decoder[std::to_string(id)] = {{"content", token}, {"special", named.contains(token)}};
    }
    out[kDecoder] = std::move(decoder);
  });
  return dump_json(out);
}

}  // namespace jackscrew
