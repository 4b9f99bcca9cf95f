#include "text/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "base/process_memory.h"
#include "text/tokenizer/byte_map.h"
#include "text/tokenizer/tokenizer_parts.h"
#include "text/utf8.h"

namespace jackscrew {

namespace {

using Json = nlohmann::json;

constexpr size_t kMaxGrowth = 64;  // of a text by normalizers; real ones reach 4
// Of normalizers, and of pre-tokenizers: each is a pass over the text, and each pre-tokenizer a
// call within that of the one before. Real files reach 7.
constexpr size_t kMaxSteps = 64;

std::string type_of(const Json& object) {
  return object.at("type").get<std::string>();
}

// A member that must be a list: a loop would take anything else for an empty one, or one of one.
const Json& list_at(const Json& object, const char* key) {
  const Json& list = object.at(key);
  if (!list.is_array()) fail(ErrorKind::model, "\"{}\" is not a list", key);
  return list;
}

// Where merges are equal, Hugging Face's tokenizers know only the last.
void keep_last_of_equal(std::vector<std::pair<std::string, std::string>>& merges) {
  std::unordered_set<std::string> later;
  later.reserve(merges.size());
  std::vector<std::pair<std::string, std::string>> kept;
  kept.reserve(merges.size());
  for (auto merge = merges.rbegin(); merge != merges.rend(); ++merge) {
    const auto& [left, right] = *merge;
    const bool is_last = later.insert(fmt::format("{} {}{}", left.size(), left, right)).second;
    if (is_last) kept.push_back(std::move(*merge));
  }
  std::ranges::reverse(kept);
  merges = std::move(kept);
}

void read_model(const Json& model, TokenizerData& data) {
  // Files older than the field hold BPE if they have merges.
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
    set_token(data, token, integer_of(id), TokenKind::normal);
  }
  // Without tokens for single bytes the flag has no effect, and some writers always set it.
  data.byte_fallback = flag(model, "byte_fallback", false) && vocabulary.contains("<0x00>");
  for (const Json& merge : list_at(model, "merges")) {
    if (merge.is_string()) {
      data.merges.push_back(parse_merge(merge.get_ref<const std::string&>()));
    } else {
      if (merge.size() != 2) fail(ErrorKind::model, "a merge is not a pair: {}", merge.dump());
      data.merges.emplace_back(merge.at(0).get<std::string>(), merge.at(1).get<std::string>());
    }
  }
  keep_last_of_equal(data.merges);
  data.ignore_merges = flag(model, "ignore_merges", false);
  data.fuse_missing = flag(model, "fuse_unk", false);
  if (const std::string unk = text_of(model, "unk_token"); !unk.empty()) {
    data.missing_id = token_id(data, unk, "unk token");
  }
}

// The string that a normalizer or decoder Replace looks for.
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
    for (const Json& part : list_at(step, "normalizers")) read_normalizer(part, data);
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

void check_step_count(size_t count, const char* what) {
  if (count <= kMaxSteps) return;
  fail_unsupported(fmt::format("a sequence of {} {}, more than {},", count, what, kMaxSteps));
}

// A file must not expand a text of many megabytes beyond any memory.
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
    for (const Json& part : list_at(step, "pretokenizers")) {
      read_pre_tokenizer(part, data, byte_level);
    }
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

// A special token of a template names an entry, whose ids, be they any, go before a text.
void check_template_ids(const Json& step, const std::string& token, int32_t id) {
  if (is_null(step, "special_tokens")) return;
  const Json& ids = step.at("special_tokens").at(token).at("ids");
  if (ids == Json::array({id})) return;
  fail_unsupported(fmt::format("a post-processor that adds the ids {} for \"{}\", whose id is {}",
                               ids.dump(), token, id));
}

void read_post_processor(const Json& step, TokenizerData& data) {
  if (step.is_null()) return;
  const std::string type = type_of(step);
  if (type == "ByteLevel") return;  // changes offsets only
  if (type == "Sequence") {
    for (const Json& part : list_at(step, "processors")) read_post_processor(part, data);
    return;
  }
  if (type != "TemplateProcessing") fail_unsupported(fmt::format("the post-processor {}", type));
  bool after_text = false;
  for (const Json& part : list_at(step, "single")) {
    if (part.contains("Sequence")) {
      after_text = true;
      continue;
    }
    const auto token = part.at("SpecialToken").at("id").get<std::string>();
    if (after_text || data.add_bos) {
      fail_unsupported(fmt::format("a post-processor that adds \"{}\" {}", token,
                                   after_text ? "after the text" : "as a second token"));
    }
    data.bos = token_id(data, token, "bos token");
    check_template_ids(step, token, data.bos);
    data.add_bos = true;
  }
}

// Whether no token is a byte such as "<0x0A>" or contains the space mark, which SentencePiece's
// decoders look for: then those decoders do not change a byte-level vocabulary. transformers writes
// them when it converts a GGUF file.
bool has_no_byte_tokens(const TokenizerData& data) {
  return std::none_of(data.tokens.begin(), data.tokens.end(),
                      [](const std::string& token) { return byte_of_token(token).has_value(); });
}
bool has_no_space_marks(const TokenizerData& data) {
  return std::none_of(data.tokens.begin(), data.tokens.end(), [](const std::string& token) {
    return token.find(kSpaceMark) != std::string::npos;
  });
}

// The vocabulary's spelling determines decoding; this checks that the file agrees.
void read_decoder(const Json& step, TokenizerData& data) {
  const std::string type = type_of(step);
  const bool text = data.spelling == Spelling::text;
  if (type == "Sequence") {
    for (const Json& part : list_at(step, "decoders")) read_decoder(part, data);
  } else if (type == "ByteLevel") {
    if (text) fail_unsupported("a ByteLevel decoder without the ByteLevel pre-tokenizer");
  } else if (type == "Replace" && (text || has_no_space_marks(data))) {
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
  } else if (type != "Fuse" && !(type == "ByteFallback" && (text || has_no_byte_tokens(data)))) {
    fail_unsupported(fmt::format("the decoder {}", type));
  }
}

// Throws Error(does_not_fit) where a memory limit does not leave what the text takes as a tree and
// as the vocabulary: for a token and its merge some 470 to 550 bytes in files of 49,000 and 199,000
// tokens. The tokenizer that is made of them takes no more than the tree that is gone by then.
void require_memory_for_tokens(std::string_view text, const std::string& file_name) {
  constexpr int64_t kOfToken = 560;
  int64_t count = 0;  // of keys that have a number, as tokens have their ids
  for (size_t at = text.find("\":"); at != text.npos; at = text.find("\":", at + 2)) {
    const size_t value = text.find_first_not_of(" \t\r\n", at + 2);
    if (value != text.npos && text[value] >= '0' && text[value] <= '9') ++count;
  }
  require_memory(count * kOfToken, fmt::format("reading the tokenizer in {}", file_name),
                 "close other programs, or raise the limit");
}

}  // namespace

TokenizerData parse_tokenizer_json(std::string_view text, const std::string& file_name) {
  require_memory_for_tokens(text, file_name);
  TokenizerData data;
  const Json root = parse_object(text, file_name);
  with_file_name(file_name, [&] {
    if (is_null(root, "model")) fail(ErrorKind::model, "the section \"model\" is missing");
    read_model(root.at("model"), data);
    if (!is_null(root, "added_tokens")) {
      for (const Json& token : list_at(root, "added_tokens")) {
        set_added_token(data, token, integer_of(token.at("id")));
      }
    }
    if (!is_null(root, "normalizer")) read_normalizer(root.at("normalizer"), data);
    check_step_count(data.normalizer.size(), "normalizers");
    check_growth(data.normalizer);
    bool byte_level = false;
    if (!is_null(root, "pre_tokenizer")) {
      read_pre_tokenizer(root.at("pre_tokenizer"), data, byte_level);
    }
    check_step_count(data.pre_tokenizer.size(), "pre-tokenizers");
    text_changes(data.pre_tokenizer);  // refuses unsupported steps
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

}  // namespace jackscrew
