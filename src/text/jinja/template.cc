#include "text/jinja/template.h"

#include "base/error.h"
#include "text/jinja/failure.h"
#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"

namespace jackscrew::jinja {

namespace {

constexpr size_t kMaxSource = size_t{4} << 20;  // the longest known have about ten thousand bytes

std::string at_line(int line, const char* what) {
  return fmt::format("chat template, line {}: {}", line, what);
}

}  // namespace

Template Template::parse(std::string_view source) {
  if (source.size() > kMaxSource) {
    throw Error(ErrorKind::model,
                fmt::format("chat template of {} bytes, more than {}", source.size(), kMaxSource));
  }
  try {
    std::vector<Token> tokens = tokenize(source);
    Template out;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool is_tag = i > 0 && tokens[i - 1].kind == Token::Kind::block_begin;
      out.has_generation_ = out.has_generation_ || (is_tag && tokens[i].is_name("generation"));
      const bool is_word =
          tokens[i].kind == Token::Kind::name || tokens[i].kind == Token::Kind::string;
      if (is_word) out.words_.insert(tokens[i].text);
    }
    out.block_ = std::make_shared<const Block>(jinja::parse(std::move(tokens)));
    return out;
  } catch (const SyntaxFailure& failure) {
    throw Error(ErrorKind::model, at_line(failure.line(), failure.what()),
                "docs/chat_templates.md lists what templates may contain");
  }
}

Text Template::render(const Variables& variables, const DateTime& now) const {
  Interpreter interpreter(now, variables);
  try {
    return interpreter.run(*block_);
  } catch (const Refusal& refusal) {
    throw Error(ErrorKind::data,
                fmt::format("the chat template (line {}) refuses the conversation: {}",
                            interpreter.line(), refusal.what()));
  } catch (const Fault& fault) {
    throw Error(ErrorKind::model, at_line(interpreter.line(), fault.what()));
  } catch (const Failure& failure) {
    throw UnfitValues(at_line(interpreter.line(), failure.what()));
  }
}

}  // namespace jackscrew::jinja
