// Chat templates: read, and rendered for a short conversation.
#include "tests/fuzz/fuzz.h"
#include "text/chat/chat_template.h"

void jackscrew::parse_input(std::string_view bytes) {
  TokenizerData tokenizer;
  tokenizer.tokens = {"<s>", "</s>", "a"};
  tokenizer.kinds = {TokenKind::special, TokenKind::special, TokenKind::normal};
  tokenizer.bos = 0;
  tokenizer.eos = 1;
  tokenizer.chat_template = bytes;
  const std::vector<Message> messages = {
      {"system", "Be\nbrief."}, {"user", "Hi </s> {{ 1 }}"}, {"assistant", " \xC3\xA9\xFF "}};
  accepts([&] {
    const ChatFormat format =
        chat_format("auto", tokenizer, chat_clock(parse_chat_date("2024-02-29")));
    if (format.is_plain()) return;
    accepts([&] { render_chat(format, messages); });
    accepts([&] { render_chat(format, std::span(messages).first(2), true); });
  });
}
