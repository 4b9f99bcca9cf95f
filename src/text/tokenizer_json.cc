#include "text/tokenizer_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "formats/json_text.h"
#include "text/utf8.h"

namespace jackscrew {

namespace {

using Json = nlohmann::json;

// Far above any published vocabulary; keeps a hostile id from reserving the machine's memory.
constexpr int64_t kMaxTokens = int64_t{1} << 22;
constexpr size_t kMaxGrowth = 64;  // of a text by normalizers; a real one has 4
constexpr const char* kSpaceMark = "\u2581";

[[noreturn]] void fail_unsupported(const std::string& what) {
  throw Error(ErrorKind::model, what + " is not supported",
              "byte-level BPE and SentencePiece's BPE are");
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

// A number with a point or an exponent is none: it may lie beyond every integer.
int64_t integer_of(const Json& value) {
  if (!value.is_number_integer()) fail(ErrorKind::model, "{} is not an integer", value.dump());
  return value.get<int64_t>();
}

// `kinds` may be left empty where all are normal; here each token has its own.
void fill_kinds(TokenizerData& data) {
  data.kinds.resize(data.tokens.size(), TokenKind::normal);
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
    add_token(data, token, integer_of(id), TokenKind::normal);
  }
  // Without tokens for single bytes the flag has no effect, and some writers set it always.
  data.byte_fallback = flag(model, "byte_fallback", false) && vocabulary.contains("<0x00>");
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
    const auto id = integer_of(entry.at("id"));
    const bool special = flag(entry, "special", false);
    add_token(data, content, id, special ? TokenKind::special : TokenKind::added);
    if (flag(entry, "normalized", !special)) {
      data.normalized_literals.push_back(static_cast<int32_t>(id));
    }
  }
}

// The string that is looked for, of a normalizer or decoder Replace.
std::string replaced_text(const Json& replace) {
  const Json& pattern = replace.at("pattern");
  if (!pattern.contains("String") || pattern.at("String").get<std::string>().empty()) {
    fail_unsupported(fmt::format("a Replace of {}", pattern.dump()));
  }
  return pattern.at("String").get<std::string>();
}

void read_normalizer(const Json& step, TokenizerData& data) {
  using Kind = NormalizerStep::Kind;
  const std::string type = type_of(step);
  if (type == "Sequence") {
    for (const Json& part : step.at("normalizers")) read_normalizer(part, data);
  } else if (type == "Prepend") {
    data.normalizer.push_back({Kind::prepend, {}, text_of(step, "prepend")});
  } else if (type == "Replace") {
    data.normalizer.push_back({Kind::replace, replaced_text(step), text_of(step, "content")});
  } else if (type == "NFC") {
    data.normalizer.push_back({Kind::nfc, {}, {}});
  } else {
    fail_unsupported(fmt::format("the normalizer {}", type));
  }
}

// A file may not make a text of many megabytes into one that no memory holds.
void check_growth(std::span<const NormalizerStep> steps) {
  size_t growth = 1;
  for (const NormalizerStep& step : steps) {
    const bool replace = step.kind == NormalizerStep::Kind::replace;
    growth *= std::min(kMaxGrowth + 1, replace ? step.to.size() / step.from.size() + 1 : 1);
    if (growth > kMaxGrowth || step.to.size() > kMaxGrowth) {
      fail(ErrorKind::model, "the normalizers make a text more than {} times as long", kMaxGrowth);
    }
  }
}

PreTokenizerStep read_metaspace(const Json& step) {
  using Prefix = PreTokenizerStep::Prefix;
  PreTokenizerStep out{PreTokenizerStep::Kind::metaspace,
                       step.at("replacement").get<std::string>()};
  if (out.pattern.empty() || utf8_step(out.pattern, 0).length != out.pattern.size()) {
    fail_unsupported(fmt::format("Metaspace with \"{}\" for a space", out.pattern));
  }
  // Files older than prepend_scheme have add_prefix_space.
  const std::string scheme = !is_null(step, "prepend_scheme") ? text_of(step, "prepend_scheme")
                             : flag(step, "add_prefix_space", true) ? "always"
                                                                    : "never";
  if (scheme == "always") {
    out.prefix = Prefix::always;
  } else if (scheme == "first") {
    out.prefix = Prefix::at_begin;
  } else if (scheme != "never") {
    fail_unsupported(fmt::format("Metaspace with prepend_scheme \"{}\"", scheme));
  }
  out.split = flag(step, "split", true);
  return out;
}

void read_pre_tokenizer(const Json& step, TokenizerData& data, bool& byte_level) {
  using Kind = PreTokenizerStep::Kind;
  using Prefix = PreTokenizerStep::Prefix;
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
    const bool prefix = flag(step, "add_prefix_space", true);
    if (flag(step, "use_regex", true)) {
      data.pre_tokenizer.push_back({Kind::byte_level, {}, prefix ? Prefix::always : Prefix::never});
    } else if (prefix) {
      fail_unsupported("ByteLevel with add_prefix_space and without use_regex");
    }
    byte_level = true;
  } else if (type == "Metaspace") {
    data.pre_tokenizer.push_back(read_metaspace(step));
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

// Decoding is what the vocabulary's spelling prescribes; here it is seen that the file agrees.
void read_decoder(const Json& step, TokenizerData& data) {
  const std::string type = type_of(step);
  const bool text = data.spelling == Spelling::text;
  if (type == "Sequence") {
    for (const Json& part : step.at("decoders")) read_decoder(part, data);
  } else if (type == "ByteLevel") {
    if (text) fail_unsupported("a ByteLevel decoder without the ByteLevel pre-tokenizer");
  } else if (type == "Replace" && text) {
    if (replaced_text(step) != kSpaceMark || text_of(step, "content") != " ") {
      fail_unsupported(fmt::format("the decoder {}", step.dump()));
    }
  } else if (type == "Strip" && text) {
    const auto start = integer_of(step.at("start"));
    if (text_of(step, "content") != " " || start > 1 || integer_of(step.at("stop")) != 0) {
      fail_unsupported(fmt::format("the decoder {}", step.dump()));
    }
    if (start == 1) data.leading_space = LeadingSpace::drop_one;
  } else if (type == "Metaspace" && text) {
    const PreTokenizerStep metaspace = read_metaspace(step);
    if (metaspace.pattern != kSpaceMark) {
      fail_unsupported(fmt::format("the decoder {}", step.dump()));
    }
    if (metaspace.prefix != PreTokenizerStep::Prefix::never) {
      data.leading_space = LeadingSpace::drop_first_token;
    }
  } else if (type != "Fuse" && !(type == "ByteFallback" && text)) {
    fail_unsupported(fmt::format("the decoder {}", type));
  }
}

// The values of added_tokens_decoder, whose keys are ids, as tokenizer.json lists such tokens.
Json added_tokens_list(const Json& by_id) {
  Json list = Json::array();
  for (const auto& [id, token] : by_id.items()) {
    const auto number = parse_int(id);
    if (!number) fail(ErrorKind::model, "added_tokens_decoder has the id \"{}\"", id);
    list.push_back(token);
    list.back()["id"] = *number;
  }
  return list;
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

Json parse_object(std::string_view text, const std::string& file_name) {
  Json root = parse_json(text, file_name);
  if (!root.is_object()) fail(ErrorKind::model, "{}: an object was expected", file_name);
  return root;
}

}  // namespace

TokenizerData parse_tokenizer_json(std::string_view text, const std::string& file_name) {
  TokenizerData data;
  const Json root = parse_object(text, file_name);
  with_file_name(file_name, [&] {
    if (is_null(root, "model")) fail(ErrorKind::model, "the section \"model\" is missing");
    read_model(root.at("model"), data);
    if (!is_null(root, "added_tokens")) read_added_tokens(root.at("added_tokens"), data);
    if (!is_null(root, "normalizer")) read_normalizer(root.at("normalizer"), data);
    check_growth(data.normalizer);
    bool byte_level = false;
    if (!is_null(root, "pre_tokenizer")) {
      read_pre_tokenizer(root.at("pre_tokenizer"), data, byte_level);
    }
    text_changes(data.pre_tokenizer);  // refuses what it cannot do
    data.spelling = byte_level ? Spelling::byte_map : Spelling::text;
    if (!is_null(root, "decoder")) {
      read_decoder(root.at("decoder"), data);
    } else if (!byte_level) {
      fail_unsupported("a tokenizer with neither ByteLevel nor a decoder");
    }
    if (!is_null(root, "post_processor")) read_post_processor(root.at("post_processor"), data);
  });
  return data;
}

void apply_model_config(TokenizerData& data, std::string_view text, const std::string& file_name) {
  const Json config = parse_object(text, file_name);
  fill_kinds(data);
  with_file_name(file_name, [&] {
    if (!is_null(config, "added_tokens_decoder")) {
      read_added_tokens(added_tokens_list(config.at("added_tokens_decoder")), data);
    }
    if (data.spelling == Spelling::byte_map) return;
    const bool prefix = flag(config, "add_prefix_space", data.leading_space != LeadingSpace::keep);
    data.leading_space = prefix ? LeadingSpace::drop_one : LeadingSpace::keep;
    if (!flag(config, "legacy", true)) {
      using Prefix = PreTokenizerStep::Prefix;
      data.normalizer.clear();
      data.pre_tokenizer = {{PreTokenizerStep::Kind::metaspace, kSpaceMark,
                             prefix ? Prefix::at_begin : Prefix::never, false}};
    } else if (!prefix) {
      std::erase_if(data.normalizer, [](const NormalizerStep& step) {
        return step.kind == NormalizerStep::Kind::prepend;
      });
    }
  });
}

void apply_tokenizer_config(TokenizerData& data, std::string_view text,
                            const std::string& file_name) {
  const Json config = parse_object(text, file_name);
  fill_kinds(data);
  with_file_name(file_name, [&] {
    const int32_t added_bos = data.bos;
    read_role(config, "bos_token", data, data.bos);
    if (data.add_bos) data.bos = added_bos;  // what is really put before a text
    // Where the configuration speaks of BOS it overrides the post-processor, as in transformers.
    data.add_bos = flag(config, "add_bos_token", data.add_bos) && data.bos >= 0;
    if (flag(config, "add_eos_token", false)) fail_unsupported("add_eos_token");
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

}  // namespace jackscrew
