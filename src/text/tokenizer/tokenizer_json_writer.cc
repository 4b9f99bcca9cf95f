#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_object.h"
#include "text/tokenizer/tokenizer_files.h"
#include "text/tokenizer/tokenizer_json.h"
#include "text/utf8.h"

namespace jackscrew {

namespace {

using OrderedJson = nlohmann::ordered_json;
using Prefix = PreTokenizerStep::Prefix;

OrderedJson step_json(const PreTokenizerStep& step) {
  using Kind = PreTokenizerStep::Kind;
  if (step.kind == Kind::metaspace) {
    return {{"type", "Metaspace"},
            {"replacement", step.pattern},
            {"prepend_scheme", step.prefix == Prefix::always     ? "always"
                               : step.prefix == Prefix::at_begin ? "first"
                                                                 : "never"},
            {"split", step.split}};
  }
  if (step.kind == Kind::digits || step.kind == Kind::digit_runs) {
    return {{"type", "Digits"}, {"individual_digits", step.kind == Kind::digits}};
  }
  return {{"type", "Split"},
          {"pattern", {{"Regex", step_pattern(step)}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

OrderedJson byte_level_json(bool use_regex, bool add_prefix_space = false) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

bool byte_level_adds_space(const TokenizerData& data) {
  return !data.pre_tokenizer.empty() &&
         data.pre_tokenizer.front().kind == PreTokenizerStep::Kind::byte_level &&
         data.pre_tokenizer.front().prefix != Prefix::never;
}

// The only step, null for none, or a Sequence of steps under `key`.
OrderedJson sequence_json(OrderedJson list, const char* key) {
  if (list.empty()) return nullptr;
  if (list.size() == 1) return list.front();
  OrderedJson out = {{"type", "Sequence"}};
  out[key] = std::move(list);
  return out;
}

OrderedJson pre_tokenizer_json(const TokenizerData& data) {
  std::vector<PreTokenizerStep> steps = data.pre_tokenizer;
  const bool byte_level = data.spelling == Spelling::byte_map;
  const bool use_regex =
      byte_level && !steps.empty() && steps.back().kind == PreTokenizerStep::Kind::byte_level;
  if (use_regex) steps.pop_back();
  OrderedJson list = OrderedJson::array();
  for (const PreTokenizerStep& step : steps) list.push_back(step_json(step));
  if (byte_level) list.push_back(byte_level_json(use_regex, byte_level_adds_space(data)));
  return sequence_json(std::move(list), "pretokenizers");
}

OrderedJson normalizer_json(const TokenizerData& data) {
  OrderedJson list = OrderedJson::array();
  for (const NormalizerStep& step : data.normalizer) {
    switch (step.kind) {
      case NormalizerStep::Kind::prepend:
        list.push_back({{"type", "Prepend"}, {"prepend", step.to}});
        break;
      case NormalizerStep::Kind::replace:
        list.push_back(
            {{"type", "Replace"}, {"pattern", {{"String", step.from}}}, {"content", step.to}});
        break;
      case NormalizerStep::Kind::nfc:
        list.push_back({{"type", "NFC"}});
        break;
    }
  }
  return sequence_json(std::move(list), "normalizers");
}

OrderedJson decoder_json(const TokenizerData& data) {
  if (data.spelling == Spelling::byte_map) return byte_level_json(true);
  const bool all = data.leading_space == LeadingSpace::drop_first_token;
  OrderedJson list = OrderedJson::array();
  if (all) {
    list.push_back({{"type", "Metaspace"},
                    {"replacement", kSpaceMark},
                    {"prepend_scheme", "always"},
                    {"split", true}});
  } else {
    list.push_back({{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}});
  }
  list.push_back({{"type", "ByteFallback"}});
  list.push_back({{"type", "Fuse"}});
  if (data.leading_space == LeadingSpace::drop_one) {
    list.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return sequence_json(std::move(list), "decoders");
}

OrderedJson post_processor_json(const TokenizerData& data) {
  if (!data.add_bos && data.spelling == Spelling::text) return nullptr;
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

// JSON has UTF-8 only, a GGUF file may have any bytes.
void require_utf8(const std::string& token, size_t id) {
  if (utf8_valid_prefix(token) == token.size()) return;
  throw Error(
      ErrorKind::model,
      fmt::format("the tokenizer cannot be written as JSON: its token {}, {}, is not UTF-8", id,
                  OrderedJson(token).dump(-1, ' ', false, OrderedJson::error_handler_t::replace)),
      kGiveOwnTokenizer);
}

std::string dump(const OrderedJson& json) {
  try {
    return json.dump(2) + "\n";
  } catch (const OrderedJson::exception& error) {
    throw Error(
        ErrorKind::model,
        fmt::format("the tokenizer cannot be written as JSON: {}", json_complaint(error.what())),
        kGiveOwnTokenizer);
  }
}

}  // namespace

std::string to_tokenizer_json(const TokenizerData& data) {
  OrderedJson added = OrderedJson::array();
  OrderedJson vocabulary = OrderedJson::object();
  // An ordered object searches its keys linearly on insertion, so the pairs are added directly.
  auto& entries = vocabulary.get_ref<OrderedJson::object_t&>();
  entries.reserve(data.tokens.size());
  for (size_t i = 0; i < data.tokens.size(); ++i) {
    const TokenKind kind = data.kinds.empty() ? TokenKind::normal : data.kinds[i];
    if (kind == TokenKind::unused) continue;
    require_utf8(data.tokens[i], i);
    entries.push_back({data.tokens[i], i});
    if (kind == TokenKind::normal) continue;
    added.push_back({{"id", i},
                     {"content", data.tokens[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", data.normalized_literals.contains(static_cast<int32_t>(i))},
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
                       {"byte_fallback", data.byte_fallback},
                       {"ignore_merges", data.ignore_merges}};
  if (data.missing_id >= 0) {
    model["unk_token"] = data.tokens.at(static_cast<size_t>(data.missing_id));
  }
  model["vocab"] = std::move(vocabulary);
  model["merges"] = std::move(merges);
  OrderedJson root = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  root["added_tokens"] = std::move(added);
  root["normalizer"] = normalizer_json(data);
  root["pre_tokenizer"] = pre_tokenizer_json(data);
  root["post_processor"] = post_processor_json(data);
  root["decoder"] = decoder_json(data);
  root["model"] = std::move(model);
  return dump(root);
}

std::string to_tokenizer_config_json(const TokenizerData& data) {
  OrderedJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                        {"add_prefix_space", byte_level_adds_space(data)},
                        {"clean_up_tokenization_spaces", false}};
  const auto role = [&](const char* key, int32_t id) {
    if (id >= 0) config[key] = data.tokens.at(static_cast<size_t>(id));
  };
  role("bos_token", data.bos);
  role("eos_token", data.eos);
  role("pad_token", data.pad);
  role("unk_token", data.unk);
  for (const auto& [name, id] : data.named_tokens) {
    // Elsewhere a name tells a token by its ending.
    OrderedJson& names = name.ends_with("_token") ? config : config["extra_special_tokens"];
    names[name] = data.tokens.at(static_cast<size_t>(id));
  }
  if (!data.tool_template.empty()) {
    config["chat_template"] = {{{"name", "default"}, {"template", data.chat_template}},
                               {{"name", "tool_use"}, {"template", data.tool_template}}};
  } else if (!data.chat_template.empty()) {
    config["chat_template"] = data.chat_template;
  }
  return dump(config);
}

}  // namespace jackscrew
