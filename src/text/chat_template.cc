#include "text/chat_template.h"

#include <optional>

#include "base/error.h"

namespace jackscrew {

namespace {

constexpr std::string_view kStart = "<|im_start|>";
constexpr std::string_view kEnd = "<|im_end|>";
constexpr std::string_view kSystem = "<|im_start|>system";

// The text from `begin` up to what ends it: the closing quote of a Jinja string with its escapes
// resolved, or, for text outside of strings (quote '\0'), the next tag. nullopt: nothing ends it.
std::optional<std::string> literal_from(std::string_view text, size_t begin, char quote) {
  std::string out;
  for (size_t i = begin; i < text.size(); ++i) {
    const char c = text[i];
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (quote == '\0') {
      if (c == '{' && (next == '{' || next == '%' || next == '#')) return out;
    } else if (c == quote) {
      return out;
    } else if (c == '\\') {
      ++i;
      switch (next) {
        case 'n':
          out += '\n';
          break;
        case 't':
          out += '\t';
          break;
        case 'r':
          out += '\r';
          break;
        case '\\':
        case '\'':
        case '"':
          out += next;
          break;
        default:
          return std::nullopt;  // an escape of some rarer kind: better no prompt than a wrong one
      }
      continue;
    }
    out += c;
  }
  return quote == '\0' ? std::optional(out) : std::nullopt;
}

// The first system message that stands whole in one literal; empty when there is none.
std::string literal_system_prompt(std::string_view text) {
  for (size_t at = text.find(kSystem); at != std::string_view::npos;
       at = text.find(kSystem, at + 1)) {
    const char before = at > 0 ? text[at - 1] : '\0';
    const char quote = before == '\'' || before == '"' ? before : '\0';
    const auto literal = literal_from(text, at + kSystem.size(), quote);
    if (!literal || !literal->starts_with('\n')) continue;
    const size_t end = literal->find(kEnd);
    if (end == std::string::npos) continue;
    return literal->substr(1, end - 1);
  }
  return {};
}

class Renderer {
 public:
  void content(std::string_view text, bool trained) {
    if (text.empty()) return;
    if (!segments_.empty() && !segments_.back().marker && segments_.back().trained == trained) {
      segments_.back().text += text;
    } else {
      segments_.push_back({std::string(text), trained, false});
    }
  }
  void marker(std::string_view text, bool trained) {
    segments_.push_back({std::string(text), trained, true});
  }
  std::vector<Segment> take() { return std::move(segments_); }

 private:
  std::vector<Segment> segments_;
};

void render_chatml(const Message& message, Renderer& out) {
  const bool trained = message.role == "assistant" && message.trained;
  out.marker(kStart, false);
  out.content(message.role + "\n", false);
  out.content(message.content, trained);
  out.marker(kEnd, trained);
  out.content("\n", false);
}

void render_plain(const Message& message, std::string_view eos_text, Renderer& out) {
  if (message.role != "assistant") {
    out.content(message.content + "\n\n", false);
    return;
  }
  if (eos_text.empty()) {
    throw Error(ErrorKind::model, "the tokenizer names no end-of-text token to end an answer with",
                "set eos_token in tokenizer_config.json");
  }
  out.content(message.content, message.trained);
  out.marker(eos_text, message.trained);
}

}  // namespace

ChatFormat detect_chat_format(std::string_view template_text) {
  if (template_text.find(kStart) == std::string_view::npos) return {};
  return {ChatFormat::Kind::chatml, literal_system_prompt(template_text)};
}

ChatFormat chat_format(std::string_view name, std::string_view template_text) {
  if (name == "auto") return detect_chat_format(template_text);
  if (name == "plain") return {};
  if (name == "chatml") {
    ChatFormat format = detect_chat_format(template_text);
    format.kind = ChatFormat::Kind::chatml;
    return format;
  }
  throw Error(ErrorKind::usage, fmt::format("unknown chat_template \"{}\"", name),
              "known: auto, chatml, plain");
}

std::vector<Segment> render_chat(const ChatFormat& format, std::span<const Message> messages,
                                 std::string_view eos_text, bool answer_follows) {
  Renderer out;
  const bool has_system = !messages.empty() && messages.front().role == "system";
  if (!has_system && !format.default_system.empty()) {
    const Message system{"system", format.default_system};
    if (format.kind == ChatFormat::Kind::chatml) {
      render_chatml(system, out);
    } else {
      render_plain(system, eos_text, out);
    }
  }
  for (const Message& message : messages) {
    if (format.kind == ChatFormat::Kind::chatml) {
      render_chatml(message, out);
    } else {
      render_plain(message, eos_text, out);
    }
  }
  if (answer_follows && format.kind == ChatFormat::Kind::chatml) {
    out.marker(kStart, false);
    out.content("assistant\n", false);
  }
  return out.take();
}

EncodedSegments encode_segments(const Tokenizer& tokenizer, std::span<const Segment> segments) {
  EncodedSegments out;
  const auto append = [&](std::span<const int32_t> ids, bool trained) {
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.trained.resize(out.ids.size(), trained ? 1 : 0);
  };
  std::string pending;  // contents not encoded yet
  bool pending_trained = false;
  const auto flush = [&] {
    append(tokenizer.encode(pending, false), pending_trained);
    pending.clear();
  };
  for (const Segment& segment : segments) {
    const auto special = segment.marker ? tokenizer.find_special(segment.text) : std::nullopt;
    if (special || segment.trained != pending_trained) flush();
    pending_trained = segment.trained;
    if (special) {
      append(std::span(&*special, 1), segment.trained);
    } else {
      pending += segment.text;
    }
  }
  flush();
  const bool has_bos = !out.ids.empty() && out.ids.front() == tokenizer.bos();
  if (tokenizer.add_bos() && !has_bos) {
    out.ids.insert(out.ids.begin(), tokenizer.bos());
    out.trained.insert(out.trained.begin(), 0);
  }
  return out;
}

}  // namespace jackscrew
