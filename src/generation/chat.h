// A conversation with a model, rendered in its chat format; tokens that a turn shares with earlier
// ones are not computed again.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "generation/generate.h"

namespace jackscrew {

// What a session must reserve for conversations of `context` tokens.
SessionUse chat_use(int64_t context);

class Chat {
 public:
  // `session` must have been planned with chat_use(context). Everything passed by reference must
  // outlive the chat. An empty `system` means no system message.
  Chat(Session& session, const Tokenizer& tokenizer, const ChatFormat& format, std::string system,
       GenerationOptions options, int64_t context);

  struct Answer {
    std::string text;
    Generation generation;
    int64_t prompt_tokens = 0;  // of the whole conversation, without the answer
    int64_t cached = 0;         // of these, tokens that were in the cache
    int64_t computed = 0;       // the others; where it was stopped, those of them that were done
    int64_t forgotten = 0;      // oldest exchanges that were dropped to make room
  };
  // Answers a message and passes the answer to `use_text` piece by piece. The conversation stays as
  // it was where options.stop is set before the answer begins, and where Error(usage) is thrown:
  // the message alone leaves no room for an answer in the context. Error(does_not_fit) is thrown
  // where a memory limit does not leave what encoding the conversation takes.
  Answer say(const std::string& message, const std::function<void(const std::string&)>& use_text);
  // Starts over, with only the system message.
  void forget();

 private:
  void make_room(Answer& answer);
  bool is_stopped() const;
  [[noreturn]] void refuse(int64_t tokens, int64_t wanted) const;

  Session& session_;
  const Tokenizer& tokenizer_;
  const ChatFormat& format_;
  std::string system_;
  GenerationOptions options_;
  int64_t context_;
  std::vector<Message> messages_;
  std::vector<int32_t> prompt_;  // the conversation, up to where the answer begins
  std::vector<int32_t> cached_;  // the tokens in the session's cache
};

}  // namespace jackscrew
