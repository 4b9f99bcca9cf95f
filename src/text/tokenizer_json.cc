#include "text/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "text/byte_map.h"

namespace jackscrew {

namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// Far above any published vocabulary; keeps a hostile id from reserving the machine's memory.
constexpr int64_t kMaxTokens = int64_t{1} << 22;

[[noreturn]] void fail_unsupported(const std::string& what) {
  throw Error(ErrorKind::model, what + " is not supported",
              "byte-level BPE tokenizers are supported");
}

bool is_null(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null();
}

bool flag(const Json& object, const char* key, bool fallback) {
  return is_null(object, key) ? fallback : object.at(key).get<bool>();
}

std::string text_of(const Json& object, const char* key) {
  return is_null(object, key) ? std::string() : object.at(key).get<std::string>();
}

std::string type_of(const Json& object) {
  return object.at("type").get<std::string>();
}

void add_token(TokenizerData& data, const std::string& token, int64_t id, TokenKind kind) {
  if (id < 0 || id >= kMaxTokens) fail(ErrorKind::model, "the token \"{}\" has id {}", token, id);
  const auto index = static_cast<size_t>(id);
  if (index >= data.tokens.size()) {
    data.tokens.resize(index + 1);
    data.kinds.resize(index + 1, TokenKind::unused);
  }
  if (data.kinds[index] != TokenKind::unused && data.tokens[index] != token) {
    fail(ErrorKind::model, "the tokens \"{}\" and \"{}\" both have id {}", data.tokens[index],
         token, id);
  }
  data.tokens[index] = token;
  data.kinds[index] = kind;
}

int32_t id_of(const TokenizerData& data, const std::string& token, const char* role) {
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    if (data.kinds[i] != TokenKind::unused && data.tokens[i] == token) {
      return static_cast<int32_t>(i);
    }
  }
  fail(ErrorKind::model, "the {} token \"{}\" is not in the vocabulary", role, token);
}

void read_model(const Json& model, TokenizerData& data) {
  // Files older than the field hold BPE where they hold merges.
  const std::string type =
      is_null(model, "type") ? (model.contains("merges") ? "BPE" : "unknown") : type_of(model);
  if (type != "BPE") fail_unsupported(fmt::format("a tokenizer model of type {}", type));
  if (!is_null(model, "dropout") && model.at("dropout").get<double>() != 0.0) {
    fail_unsupported("BPE dropout");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!text_of(model, key).empty()) fail_unsupported(fmt::format("BPE with {}", key));
  }
  const Json& vocabulary = model.at("vocab");
  if (!vocabulary.is_object()) fail(ErrorKind::model, "model.vocab is not an object");
  for (const auto& [token, id] : vocabulary.items()) {
    add_token(data, token, id.get<int64_t>(), TokenKind::normal);
  }
  // Without tokens for single bytes the flag has no effect, and some writers set it always.
  if (flag(model, "byte_fallback", false) && vocabulary.contains("<0x00>")) {
    fail_unsupported("BPE with byte_fallback");
  }
  for (const Json& merge : model.at("merges")) {
    if (merge.is_string()) {
      data.merges.push_back(parse_merge(merge.get_ref<const std::string&>()));
    } else {
      if (merge.size() != 2) fail(ErrorKind::model, "a merge is not a pair: {}", merge.dump());
      data.merges.emplace_back(merge.at(0).get<std::string>(), merge.at(1).get<std::string>());
    }
  }
  data.ignore_merges = flag(model, "ignore_merges", false);
  data.fuse_missing = flag(model, "fuse_unk", false);
  if (const std::string unk = text_of(model, "unk_token"); !unk.empty()) {
    data.missing_id = id_of(data, unk, "unk");
  }
}

void read_added_tokens(const Json& list, TokenizerData& data) {
  for (const Json& entry : list) {
    const auto content = entry.at("content").get<std::string>();
    for (const char* key : {"single_word", "lstrip", "rstrip"}) {
      if (flag(entry, key, false)) {
        fail_unsupported(fmt::format("the added token \"{}\" with {}", content, key));
      }
    }
    add_token(data, content, entry.at("id").get<int64_t>(),
              flag(entry, "special", false) ? TokenKind::special : TokenKind::added);
  }
}

void read_normalizer(const Json& normalizer) {
  if (normalizer.is_null()) return;
  const std::string type = type_of(normalizer);
  if (type != "Sequence") fail_unsupported(fmt::format("the normalizer {}", type));
  for (const Json& part : normalizer.at("normalizers")) read_normalizer(part);
}

void read_pre_tokenizer(const Json& step, TokenizerData& data, bool& byte_level) {
  using Kind = PreTokenizerStep::Kind;
  const std::string type = type_of(step);
  if (type == "Sequence") {
    for (const Json& part : step.at("pretokenizers")) read_pre_tokenizer(part, data, byte_level);
    return;
  }
  if (byte_level) fail_unsupported(fmt::format("the pre-tokenizer {} after ByteLevel", type));
  if (type == "Digits") {
    const bool each = flag(step, "individual_digits", false);
    data.pre_tokenizer.push_back({each ? Kind::digits : Kind::digit_runs, {}});
  } else if (type == "Split") {
    const Json& pattern = step.at("pattern");
    if (!pattern.contains("Regex")) fail_unsupported("a Split pre-tokenizer without Regex");
    if (step.at("behavior").get<std::string>() != "Isolated" || flag(step, "invert", false)) {
      fail_unsupported(fmt::format("a Split pre-tokenizer with behavior {}{}",
                                   step.at("behavior").dump(),
                                   flag(step, "invert", false) ? " and invert" : ""));
    }
    data.pre_tokenizer.push_back({Kind::regex, pattern.at("Regex").get<std::string>()});
  } else if (type == "ByteLevel") {
    if (flag(step, "add_prefix_space", true)) fail_unsupported("ByteLevel with add_prefix_space");
    if (flag(step, "use_regex", true)) data.pre_tokenizer.push_back({Kind::byte_level, {}});
    byte_level = true;
  } else {
    fail_unsupported(fmt::format("the pre-tokenizer {}", type));
  }
}

void read_post_processor(const Json& step, TokenizerData& data) {
  if (step.is_null()) return;
  const std::string type = type_of(step);
  if (type == "ByteLevel") return;  // moves offsets only
  if (type == "Sequence") {
    for (const Json& part : step.at("processors")) read_post_processor(part, data);
    return;
  }
  if (type != "TemplateProcessing") fail_unsupported(fmt::format("the post-processor {}", type));
  bool after_text = false;
  for (const Json& part : step.at("single")) {
    if (part.contains("Sequence")) {
      after_text = true;
      continue;
    }
    const auto token = part.at("SpecialToken").at("id").get<std::string>();
    if (after_text || data.add_bos) {
      fail_unsupported(fmt::format("a post-processor that adds \"{}\" {}", token,
                                   after_text ? "after the text" : "as a second token"));
    }
    data.bos = id_of(data, token, "bos");
    data.add_bos = true;
  }
}

// A token in tokenizer_config.json: null, its text, or an object that holds the text.
void read_role(const Json& config, const char* key, const TokenizerData& data, int32_t& id) {
  if (is_null(config, key)) return;
  const Json& value = config.at(key);
  id = id_of(data,
             value.is_object() ? value.at("content").get<std::string>() : value.get<std::string>(),
             key);
}

// Runs `read`, giving every failure of parsing the file's name.
template <typename Read>
void with_file_name(const std::string& file_name, const Read& read) {
  try {
    read();
  } catch (const Json::exception& error) {
    fail(ErrorKind::model, "{}: {}", file_name, error.what());
  } catch (const Error& error) {
    throw Error(ErrorKind::model, fmt::format("{}: {}", file_name, error.what()), error.hint());
  }
}

Json parse_object(std::string_view text) {
  Json root = Json::parse(text);
  if (!root.is_object()) fail(ErrorKind::model, "an object was expected");
  return root;
}

OrderedJson step_json(const PreTokenizerStep& step) {
  using Kind = PreTokenizerStep::Kind;
  if (step.kind == Kind::digits || step.kind == Kind::digit_runs) {
    return {{"type", "Digits"}, {"individual_digits", step.kind == Kind::digits}};
  }
  return {{"type", "Split"},
          {"pattern", {{"Regex", step_pattern(step)}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

OrderedJson byte_level_json(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

OrderedJson pre_tokenizer_json(const TokenizerData& data) {
  std::vector<PreTokenizerStep> steps = data.pre_tokenizer;
  const bool use_regex = !steps.empty() && steps.back().kind == PreTokenizerStep::Kind::byte_level;
  if (use_regex) steps.pop_back();
  if (steps.empty()) return byte_level_json(use_regex);
  OrderedJson list = OrderedJson::array();
  for (const PreTokenizerStep& step : steps) list.push_back(step_json(step));
  list.push_back(byte_level_json(use_regex));
  return {{"type", "Sequence"}, {"pretokenizers", list}};
}

OrderedJson post_processor_json(const TokenizerData& data) {
  if (!data.add_bos) return byte_level_json(true);
  const std::string& bos = data.tokens.at(static_cast<size_t>(data.bos));
  const OrderedJson special = {{"SpecialToken", {{"id", bos}, {"type_id", 0}}}};
  const auto sequence = [](const char* id, int type) {
    return OrderedJson{{"Sequence", {{"id", id}, {"type_id", type}}}};
  };
  const OrderedJson definition = {
      {"id", bos}, {"ids", OrderedJson::array({data.bos})}, {"tokens", OrderedJson::array({bos})}};
  OrderedJson out = {{"type", "TemplateProcessing"}};
  out["single"] = OrderedJson::array({special, sequence("A", 0)});
  out["pair"] = OrderedJson::array({special, sequence("A", 0), special, sequence("B", 1)});
  out["special_tokens"][bos] = definition;
  return out;
}

std::string dump(const OrderedJson& json) {
  try {
    return json.dump(2) + "\n";
  } catch (const Json::exception& error) {
    fail(ErrorKind::model, "the tokenizer cannot be written as JSON: {}", error.what());
  }
}

}  // namespace

TokenizerData parse_tokenizer_json(std::string_view text, const std::string& file_name) {
  TokenizerData data;
  with_file_name(file_name, [&] {
    const Json root = parse_object(text);
    if (is_null(root, "model")) fail(ErrorKind::model, "the section \"model\" is missing");
    read_model(root.at("model"), data);
    if (!is_null(root, "added_tokens")) read_added_tokens(root.at("added_tokens"), data);
    if (!is_null(root, "normalizer")) read_normalizer(root.at("normalizer"));
    bool byte_level = false;
    if (!is_null(root, "pre_tokenizer")) {
      read_pre_tokenizer(root.at("pre_tokenizer"), data, byte_level);
    }
    if (!byte_level) fail_unsupported("a tokenizer without the ByteLevel pre-tokenizer");
    if (!is_null(root, "post_processor")) read_post_processor(root.at("post_processor"), data);
  });
  return data;
}

void apply_tokenizer_config(TokenizerData& data, std::string_view text,
                            const std::string& file_name) {
  with_file_name(file_name, [&] {
    const Json config = parse_object(text);
    const int32_t added_bos = data.bos;
    read_role(config, "bos_token", data, data.bos);
    if (data.add_bos) data.bos = added_bos;  // what is really put before a text
    read_role(config, "eos_token", data, data.eos);
    read_role(config, "pad_token", data, data.pad);
    read_role(config, "unk_token", data, data.unk);
    if (is_null(config, "chat_template")) return;
    const Json& chat = config.at("chat_template");
    if (chat.is_string()) {
      data.chat_template = chat.get<std::string>();
      return;
    }
    for (const Json& named : chat) {  // several templates, each with a name
      if (named.at("name").get<std::string>() == "default") {
        data.chat_template = named.at("template").get<std::string>();
      }
    }
  });
}

TokenizerData read_tokenizer_directory(const std::filesystem::path& directory) {
  const fs::path tokenizer = directory / "tokenizer.json";
  TokenizerData data = parse_tokenizer_json(read_text(tokenizer), tokenizer.string());
  if (const fs::path config = directory / "tokenizer_config.json"; fs::exists(config)) {
    apply_tokenizer_config(data, read_text(config), config.string());
  }
  if (const fs::path chat = directory / "chat_template.jinja"; fs::exists(chat)) {
    data.chat_template = read_text(chat);
  }
  return data;
}

std::string to_tokenizer_json(const TokenizerData& data) {
  OrderedJson added = OrderedJson::array();
  OrderedJson vocabulary = OrderedJson::object();
  // Keys of an ordered object are searched one by one on insertion, so the pairs go in unchecked.
  auto& entries = vocabulary.get_ref<OrderedJson::object_t&>();
  entries.reserve(data.tokens.size());
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    const TokenKind kind = data.kinds.empty() ? TokenKind::normal : data.kinds[i];
    if (kind == TokenKind::unused) continue;
    entries.push_back({data.tokens[i], i});
    if (kind == TokenKind::normal) continue;
    added.push_back({{"id", i},
                     {"content", data.tokens[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", kind == TokenKind::special}});
  }
  OrderedJson merges = OrderedJson::array();
  for (const auto& [left, right] : data.merges) {
    merges.push_back(OrderedJson::array({left, right}));
  }
  OrderedJson model = {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", data.fuse_missing},
                       {"byte_fallback", false},
                       {"ignore_merges", data.ignore_merges}};
  if (data.missing_id >= 0) {
    model["unk_token"] = data.tokens.at(static_cast<size_t>(data.missing_id));
  }
  model["vocab"] = std::move(vocabulary);
  model["merges"] = std::move(merges);
  OrderedJson root = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  root["added_tokens"] = std::move(added);
  root["normalizer"] = nullptr;
  root["pre_tokenizer"] = pre_tokenizer_json(data);
  root["post_processor"] = post_processor_json(data);
  root["decoder"] = byte_level_json(true);
  root["model"] = std::move(model);
  return dump(root);
}

std::string to_tokenizer_config_json(const TokenizerData& data) {
  OrderedJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                        {"add_prefix_space", false},
                        {"clean_up_tokenization_spaces", false}};
  const auto role = [&](const char* key, int32_t id) {
    if (id >= 0) config[key] = data.tokens.at(static_cast<size_t>(id));
  };
  role("bos_token", data.bos);
  role("eos_token", data.eos);
  role("pad_token", data.pad);
  role("unk_token", data.unk);
  if (!data.chat_template.empty()) config["chat_template"] = data.chat_template;
  return dump(config);
}

}  // namespace jackscrew
