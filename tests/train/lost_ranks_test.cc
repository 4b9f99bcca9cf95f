// What the user hears of ranks that are lost, before the result is written and after it.
#include <gtest/gtest.h>

#include <exception>
#include <span>
#include <thread>
#include <utility>

#include "tests/support/errors.h"
#include "tests/support/ranks.h"
#include "train/crew_messages.h"
#include "train/output_dir.h"
#include "train/run_start.h"

namespace jackscrew {
namespace {

// Whose other ranks are lost when they are to hear that the run has ended.
class LostAtTheEnd : public Transport {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  const std::string& host(int) const override { return host_; }
  Ticket send(int, Tag, std::span<const uint8_t>) override { return {}; }
  Ticket receive(int, Tag, std::span<uint8_t>) override { return {}; }
  void wait(std::span<const Ticket>) override {}
  [[noreturn]] void abort(int) override { fail(ErrorKind::generic, "aborted"); }
  void close() override { fail(ErrorKind::device, "rank 1 on here is lost"); }

 private:
  std::string host_ = "here";
};

// An end of a network, for those that fail at some message.
class End : public Transport {
 public:
  explicit End(Transport& network) : network_(network) {}

  int rank() const override { return network_.rank(); }
  int size() const override { return network_.size(); }
  const std::string& host(int rank) const override { return network_.host(rank); }
  Ticket send(int to, Tag tag, std::span<const uint8_t> bytes) override {
    return network_.send(to, tag, bytes);
  }
  Ticket receive(int from, Tag tag, std::span<uint8_t> bytes) override {
    return network_.receive(from, tag, bytes);
  }
  void wait(std::span<const Ticket> tickets) override { network_.wait(tickets); }
  [[noreturn]] void abort(int exit_code) override {
    network_.abort(exit_code);
    std::terminate();  // never reached
  }
  void close() override { network_.close(); }

 private:
  Transport& network_;
};

// Rank 0's. Once `file` is there, it carries so many more of rank 0's messages.
class LostAfterAFile : public End {
 public:
  LostAfterAFile(Transport& network, fs::path file, int messages)
      : End(network), file_(std::move(file)), messages_(messages) {}

  Ticket send(int to, Tag tag, std::span<const uint8_t> bytes) override {
    if (fs::exists(file_) && messages_-- == 0) {
      EXPECT_THROW(abort(7), Error);  // so that the other rank ends
      fail(ErrorKind::device, "rank 1 on here is lost");
    }
    return End::send(to, tag, bytes);
  }

 private:
  fs::path file_;
  int messages_;
};

// Rank 1's, which fails where rank 0 asks for the result of a step.
class LostAtAResult : public End {
 public:
  using End::End;

  Ticket receive(int from, Tag tag, std::span<uint8_t> bytes) override {
    received_ = bytes;
    return End::receive(from, tag, bytes);
  }
  void wait(std::span<const Ticket> tickets) override {
    End::wait(tickets);
    // Only a command without arguments is a single byte.
    const auto received = std::exchange(received_, {});
    if (received.size() == 1 && received[0] == static_cast<uint8_t>(Command::result)) {
      fail(ErrorKind::model, "the model is cut short");
    }
  }

 private:
  std::span<uint8_t> received_;
};

class LostRanks : public ::testing::Test {
 protected:
  // "message | hint" of the loss that ends a run on this transport.
  std::string loss_of(const std::string& settings, Transport& transport) const {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> nowhere(std::fopen("/dev/null", "w"),
                                                                  std::fclose);
    TrainConsole console;
    console.out = nowhere.get();
    console.style.quiet = true;
    const Recipe recipe =
        make_recipe(settings_of(tiny_.settings("method=full max_steps=1 " + settings)));
    return error_of(ErrorKind::device, [&] {
      try {
        train(recipe, console, &transport);
      } catch (const RanksLost&) {
        throw;
      } catch (const std::exception& error) {
        ADD_FAILURE() << "nothing ends the other ranks: " << error.what();
      }
    });
  }

  // As a pipeline of two ranks.
  std::string loss_in_a_pipeline(const std::string& settings, const fs::path& file,
                                 int messages) const {
    const auto network = make_in_process(2);
    std::thread other([&] { EXPECT_THROW(serve(*network[1]), Error); });
    LostAfterAFile transport(*network[0], file, messages);
    std::string loss = loss_of("pipeline_stages=2 save_steps=1 " + settings, transport);
    other.join();
    return loss;
  }

  std::string output(const std::string& name) const {
    return "output_dir=" + tiny_.path(name).string() + " ";
  }
  void expect_whole(const std::string& name, const std::string& loss) const {
    EXPECT_EQ(message_of(loss), "the result is complete in " + tiny_.path(name).string() +
                                    ", but rank 1 on here is lost");
    EXPECT_NE(hint_of(loss).find("for the exports"), std::string::npos) << loss;
    EXPECT_TRUE(fs::exists(tiny_.path(name + "/model.safetensors")));
  }

  TinyRun tiny_{"lost_ranks"};
};

TEST_F(LostRanks, AtTheEndLeaveTheResultWhole) {
  LostAtTheEnd transport;
  expect_whole("out", loss_of(output("out") + "report_samples=0 export=hf:bf16", transport));
}

// A pipeline's ranks tell what they took, and then answer for the report together.
TEST_F(LostRanks, InWhatFollowsTheResultLeaveItWhole) {
  constexpr int kToBeTold = 2;  // messages: a command and its size
  const std::string settings = "report_samples=1 export=hf:bf16 eval_data=" + tiny_.eval_data();
  for (const int messages : {0, kToBeTold}) {
    const std::string name = fmt::format("after{}", messages);
    const fs::path result = tiny_.path(name + "/model.safetensors");
    expect_whole(name, loss_in_a_pipeline(output(name) + settings, result, messages));
    EXPECT_EQ(tiny_.events(name, "end").size(), messages == kToBeTold ? 1u : 0u);
    EXPECT_EQ(tiny_.events(name, "sample").size(), 1u) << "those from before the first step";
  }
  { const OutputClaim claim(tiny_.path("after0")); }  // as the next start does
  EXPECT_EQ(tiny_.events("after0", "end").size(), 1u);
  // The same command again, for the answers.
  const std::string name = fmt::format("after{}", kToBeTold);
  const fs::path result = tiny_.path(name + "/model.safetensors");
  expect_whole(name, loss_in_a_pipeline(output(name) + settings, result, 0));
}

// What else fails would fail again: its own hint says what to do.
TEST_F(LostRanks, AloneAreAReasonToRepeatTheCommand) {
  const Recipe recipe =
      make_recipe(settings_of(tiny_.settings("method=full export=hf:bf16 " + output("out"))));
  const Error error(ErrorKind::device, "there is no GPU", "set device=cpu");
  const auto told = [&](bool ranks_lost) {
    return failed_after_the_result(error, recipe, tiny_.path("out"), ranks_lost);
  };
  EXPECT_EQ(told(false).hint(), "set device=cpu");
  EXPECT_EQ(told(true).hint(), "run the same command again for the exports");
}

TEST_F(LostRanks, BeforeTheResultAreAllThatIsSaid) {
  const std::string loss = loss_in_a_pipeline(output("out"), tiny_.config(), 0);
  EXPECT_EQ(message_of(loss), "rank 1 on here is lost");
  EXPECT_FALSE(fs::exists(tiny_.path("out/model.safetensors")));
}

// What a step has brought counts on every rank or on none.
TEST_F(LostRanks, AreHeardOfBeforeAStepIsTold) {
  const auto network = make_in_process(2);
  std::thread other([&] {
    LostAtAResult transport(*network[1]);
    try {
      serve(transport);
      ADD_FAILURE() << "rank 0 has asked for no result";
    } catch (const RanksLost& lost) {
      EXPECT_STREQ(lost.what(), "the model is cut short");
      EXPECT_THROW(transport.abort(5), Error);
    }
  });
  loss_of(output("out") + "pipeline_stages=2 report_samples=0", *network[0]);
  other.join();
  EXPECT_FALSE(tiny_.events("out").empty());
  EXPECT_TRUE(tiny_.events("out", "step").empty());
}

TEST_F(LostRanks, AreDismissedOnceAnErrorIsTold) {
  LostAtTheEnd transport;
  std::string told;
  TrainConsole console;
  console.report = [&](const Error& error) { told = error.what(); };
  const Recipe recipe = make_recipe({"model=nowhere", "data=nothing", "output_dir=out"});
  const auto start = [&] { train(recipe, console, &transport); };
  EXPECT_EQ(message_of(error_of(ErrorKind::model, start)), told);
  EXPECT_NE(told, "");
}

}  // namespace
}  // namespace jackscrew
