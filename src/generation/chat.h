// A conversation with a model: turns as its chat format has them, each computed once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "generation/generate.h"

namespace jackscrew {

// What a session must hold for conversations of `context` tokens.
SessionUse chat_use(int64_t context);

class Chat {
 public:
  // The session is of chat_use(context). All that is passed by reference must outlive the chat. An
  // empty `system` is none.
  Chat(Session& session, const Tokenizer& tokenizer, const ChatFormat& format, std::string system,
       GenerationOptions options, int64_t context);

  struct Answer {
    std::string text;
    Generation generation;
    int64_t prompt_tokens = 0;  // of the whole conversation, the answer aside
    int64_t computed = 0;       // of those, the ones that were not known from the turns before
    int64_t forgotten = 0;      // exchanges that had to go, the oldest, to make room
  };
  // The answer to a message; `use_text` is told of it piece by piece. Throws Error(usage), and
  // keeps the conversation as it was, when the message alone is too long for the context.
  Answer say(const std::string& message, const std::function<void(const std::string&)>& use_text);
  // Begins anew, with the system message.
  void forget();

 private:
  std::vector<int32_t> encode() const;
  void make_room(Answer& answer);

  Session& session_;
  const Tokenizer& tokenizer_;
  const ChatFormat& format_;
  std::string system_;
  GenerationOptions options_;
  int64_t context_;
  std::vector<Message> messages_;
  std::vector<int32_t> prompt_;  // the conversation, up to where the answer begins
  std::vector<int32_t> cached_;  // what the session's cache holds
};

}  // namespace jackscrew
