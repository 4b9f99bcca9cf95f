// jackscrew chat: a conversation with a model, one line per message.
#include "generation/chat.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <csignal>
#include <iostream>

#include "base/console.h"
#include "base/error.h"
#include "base/json_object.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/generation_setup.h"
#include "cli/interruption.h"
#include "session/loading.h"

namespace jackscrew {

namespace {

// Ctrl-C ends an answer or, if none is being given, the program. It arrives on a thread of its own
// (base/signals.h).
class Interrupt {
 public:
  void receive() {
    if (requests_.receive(SIGINT) == 0) return;
    if (!answering_.load()) ::_exit(static_cast<int>(ErrorKind::interrupted));
    stopped_.store(true);
  }
  void begin_answer() {
    stopped_.store(false);
    answering_.store(true);
  }
  void end_answer() { answering_.store(false); }
  const std::atomic<bool>& stopped() const { return stopped_; }

 private:
  SignalRequests requests_;
  std::atomic<bool> answering_{false}, stopped_{false};
};

constexpr const char* kCommands =
    "/reset   forget the conversation\n"
    "/exit    leave, as Ctrl-D does\n"
    "/help    show this\n"
    "Ctrl-C   stop the answer; at the prompt, leave\n"
    "Any other line is a message to the model, but for /WORD alone.\n";

constexpr size_t kLongestTerminalLine = 4095;  // bytes: Linux drops the rest without a word

// A line of standard input, as std::getline() reads it, but not of any length. False: there is
// none.
bool read_line(std::string& line) {
  line.clear();
  for (char c = 0; std::cin.get(c);) {
    if (c == '\n') return true;
    check_piped(line, 1, "message");
    line += c;
  }
  return !line.empty();
}

// "/quit", but no path and no text.
bool looks_like_command(std::string_view message) {
  return message.starts_with('/') && message.find_first_of("/ \t.", 1) == message.npos;
}

void say_how(const Chat::Answer& answer, const char* stopped) {
  const Generation& generation = answer.generation;
  write_stderr(fmt::format("[prompt {}, {} cached, {:.1f} tok/s; answer {}{}{}]\n",
                           counted(answer.prompt_tokens, "token"), answer.cached,
                           token_rate(answer.computed, generation.prefill_seconds),
                           counted(static_cast<int64_t>(generation.ids.size()), "token"),
                           rate_text(generation), stopped));
}

class Conversation {
 public:
  Conversation(Chat& chat, const Recipe& recipe, Interrupt& interrupt)
      : chat_(chat), recipe_(recipe), interrupt_(interrupt) {}

  void run() {
    const bool terminal = ::isatty(STDIN_FILENO) != 0;
    const bool asks = terminal && !recipe_.quiet;
    if (asks)
      write_stderr("/help lists commands; /exit or Ctrl-D leaves; Ctrl-C stops an answer\n");
    for (std::string line; ask(asks), read_line(line);) {
      if (terminal && line.size() >= kLongestTerminalLine) {
        write_stderr(fmt::format(
            "a terminal passes on no more than {} bytes of a line, and this message may have been "
            "cut: pipe it in, or shorten it\n",
            kLongestTerminalLine));
        continue;
      }
      if (line.ends_with('\r')) line.pop_back();
      std::string_view command = line;
      command.remove_prefix(std::min(command.find_first_not_of(" \t"), command.size()));
      command = command.substr(0, command.find_last_not_of(" \t") + 1);
      if (command == "/exit") return;
      if (command == "/help") {
        write_stderr(kCommands);
      } else if (command == "/reset") {
        chat_.forget();
      } else if (looks_like_command(command)) {
        write_stderr(fmt::format("there is no command {}: /help lists them\n", one_line(command)));
      } else if (!command.empty()) {
        answer(line);
      }
    }
  }

 private:
  static void ask(bool asks) {
    if (asks) write_stderr("> ");
  }

  void answer(const std::string& message) {
    interrupt_.begin_answer();
    Chat::Answer answer;
    try {
      answer = chat_.say(message, [&](const std::string& piece) {
        if (!recipe_.json) print_piece(piece);
      });
    } catch (const Error& error) {
      interrupt_.end_answer();
      // A message that is too long does not end the conversation.
      if (error.kind() != ErrorKind::usage || ::isatty(STDIN_FILENO) == 0) throw;
      write_stderr(
          fmt::format("jackscrew: {}; {}\n", one_line(error.what()), one_line(error.hint())));
      return;
    }
    interrupt_.end_answer();
    const std::string_view ended =
        what_ended(answer.generation, recipe_.max_new_tokens, interrupt_.stopped().load());
    if (recipe_.json) {
      print_piece(JsonObject()
                      .add("text", answer.text)
                      .add("tokens", answer.generation.ids.size())
                      .add("prompt_tokens", answer.prompt_tokens)
                      .add("computed_tokens", answer.computed)
                      .add("tokens_per_second", answer.generation.decode_rate().value_or(NAN))
                      .add("ended", ended)
                      .add("forgotten", answer.forgotten)
                      .text() +
                  "\n");
      return;
    }
    print_piece(answer.text.ends_with('\n') ? "" : "\n");
    if (recipe_.quiet) return;
    if (answer.forgotten > 0) {
      write_stderr(fmt::format("[the context is full: the oldest {} dropped]\n",
                               answer.forgotten == 1
                                   ? "exchange was"
                                   : fmt::format("{} exchanges were", answer.forgotten)));
    }
    say_how(answer, what_stopped(ended));
  }

  Chat& chat_;
  const Recipe& recipe_;
  Interrupt& interrupt_;
};

int converse(const Recipe& given) {
  Interrupt interrupt;
  const SignalThread thread(std::array{SIGINT}, [&](int) { interrupt.receive(); });
  GenerationSetup setup(given, "chat");
  if (setup.format.is_plain() && setup.recipe.chat_template == "auto") {
    warn(fmt::format("{} has no chat template; set one, such as chat_template=chatml",
                     setup.recipe.model));
  }
  const int64_t context = std::min(setup.recipe.context, setup.longest_text);
  if (setup.format.is_plain()) {
    // The second message needs what ends the answer to the first.
    const std::array<Message, 2> turn = {Message{"user", ""}, Message{"assistant", ""}};
    render_chat(setup.format, turn);
  }
  const auto session =
      open_session(setup.recipe, setup.files, chat_use(context), stderr_style(setup.recipe.quiet));
  setup.options.stop = &interrupt.stopped();
  Chat chat(*session, setup.tokenizer, setup.format, setup.recipe.system, setup.options, context);
  Conversation(chat, setup.recipe, interrupt).run();
  return 0;
}

}  // namespace

int run_chat(Arguments arguments) {
  return with_recipe(arguments, 0, "chat", converse);
}

}  // namespace jackscrew
