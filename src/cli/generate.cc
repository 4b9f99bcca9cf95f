// jackscrew generate: writes the continuation of a prompt.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <optional>

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

// Reads standard input to its end; drops the final line break, which shell tools add.
std::string piped_prompt() {
  std::string text;
  std::array<char, 65536> buffer{};
  for (size_t got = 0; (got = std::fread(buffer.data(), 1, buffer.size(), stdin)) > 0;) {
    check_piped(text, got, "prompt");
    text.append(buffer.data(), got);
  }
  if (std::ferror(stdin) != 0) {
    throw Error(ErrorKind::usage, "cannot read the prompt from standard input", "give prompt=TEXT");
  }
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

// The recipe's prompt; standard input for `-`, or if none is given and stdin is not a terminal.
// Throws Error(usage) where there is none.
std::string prompt_of(const Recipe& recipe, const ChatFormat& format) {
  if (recipe.prompt != "-") {
    if (recipe.options.was_set("prompt")) {
      // A base model may begin a text of its own; there is no answer to an empty message.
      if (!recipe.prompt.empty() || continues_prompt(format, recipe.system)) return recipe.prompt;
      throw Error(ErrorKind::usage, "generate needs a prompt, and prompt= is empty",
                  "give prompt=TEXT; with chat_template=plain and no system prompt, a model begins "
                  "a text of its own");
    }
    if (::isatty(STDIN_FILENO) == 1) {
      throw Error(ErrorKind::usage, "generate needs a prompt",
                  "give prompt=TEXT, or pipe it in: jackscrew generate model=... < prompt.txt; "
                  "jackscrew chat is for conversations");
    }
  }
  std::string prompt = piped_prompt();
  if (prompt.empty()) {
    throw Error(ErrorKind::usage, "generate needs a prompt, and standard input is empty",
                "give prompt=TEXT, or pipe it in: jackscrew generate model=... < prompt.txt");
  }
  return prompt;
}

// The tokens left for the answer: a model has no positions beyond its context.
int64_t room_for_answer(const GenerationSetup& setup, int64_t prompt_tokens) {
  const Recipe& recipe = setup.recipe;
  const int64_t room = setup.longest_text - prompt_tokens;
  const std::string context = fmt::format(
      "the model's context of {} tokens{}", setup.files.config.longest_sequence(),
      setup.virtual_tokens > 0 ? fmt::format(", {} of them virtual,", setup.virtual_tokens) : "");
  if (room <= 0) {
    throw Error(ErrorKind::usage,
                fmt::format("the prompt has {} tokens: {} leaves no room for an answer",
                            prompt_tokens, context),
                "shorten the prompt");
  }
  if (room < recipe.max_new_tokens && !recipe.quiet) {
    write_stderr(fmt::format("{} leaves room for {}\n", context, counted(room, "token")));
  }
  return std::min(room, recipe.max_new_tokens);
}

// For --json, which prints an answer as a whole: Ctrl-C ends the answer. Before it begins, and a
// second time, Ctrl-C ends the program.
class AnswerInterrupt {
 public:
  void receive() {
    const int request = requests_.receive(SIGINT);
    if (request == 0) return;
    if (request > 1 || !answering_.load()) end_by(SIGINT);
    stopped_.store(true);
  }
  void begin_answer() { answering_.store(true); }
  const std::atomic<bool>& stopped() const { return stopped_; }

 private:
  SignalRequests requests_;
  std::atomic<bool> answering_{false}, stopped_{false};
};

int write_answer(const Recipe& given) {
  AnswerInterrupt interrupt;
  std::optional<SignalThread> thread;
  if (given.json) thread.emplace(std::array{SIGINT}, [&](int) { interrupt.receive(); });
  GenerationSetup setup(given, "generate");
  const Recipe& recipe = setup.recipe;
  const ModelFiles& files = setup.files;
  GenerationOptions& options = setup.options;
  const std::vector<int32_t> prompt =
      encode_prompt(setup.tokenizer, setup.format, recipe.system, prompt_of(recipe, setup.format));
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  options.max_new_tokens = room_for_answer(setup, prompt_tokens);

  const SessionUse use = generation_use(prompt_tokens, options.max_new_tokens);
  const auto session = open_session(recipe, files, use, stderr_style(recipe.quiet));

  // A continuation that begins a new word begins with a space, which whoever joins it to the prompt
  // needs. An answer is a text of its own, and has none, as in transformers.
  const bool continues = continues_prompt(setup.format, recipe.system);
  StreamDecoder decoder(setup.tokenizer, true, continues ? TextPlace::inside : TextPlace::begin);
  std::string text;
  const auto show = [&](const std::string& piece) {
    text += piece;
    if (!recipe.json) print_piece(piece);
  };
  options.stop = &interrupt.stopped();
  interrupt.begin_answer();
  const Generation answer =
      generate(*session, prompt, options, [&](int32_t id) { show(decoder.push(id)); });
  const bool interrupted = interrupt.stopped().load();
  const std::string_view ended = what_ended(answer, recipe.max_new_tokens, interrupted);
  show(decoder.finish());

  if (recipe.json) {
    JsonObject object;
    object.add("text", text)
        .add("tokens", answer.ids.size())
        .add("prompt_tokens", prompt_tokens)
        .add("tokens_per_second", answer.decode_rate().value_or(NAN))
        .add("ended", ended);
    fmt::print("{}\n", object.text());
  } else if (!text.ends_with('\n')) {
    fmt::print("\n");
  }
  flush_output();
  if (!recipe.quiet) {
    write_stderr(fmt::format("prompt {}, {:.1f} tok/s; answer {}{}{}\n",
                             counted(prompt_tokens, "token"),
                             token_rate(prompt_tokens, answer.prefill_seconds),
                             counted(static_cast<int64_t>(answer.ids.size()), "token"),
                             rate_text(answer), what_stopped(ended)));
  }
  return ended == "interrupt" ? static_cast<int>(ErrorKind::interrupted) : 0;
}

}  // namespace

int run_generate(Arguments arguments) {
  return with_recipe(arguments, 0, "generate", write_answer);
}

}  // namespace jackscrew
