// Runs of GaLore that go on with other settings, through the program.
#include <fmt/format.h>

#include <set>

#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

// From there on subspaces are refreshed as the new settings say.
TEST(SlowGaloreResume, AChangedGapOfGaloreHolds) {
  const TinyRun tiny("changed_gap");
  const std::string settings =
      "method=galore max_steps=12 save_steps=4 logging_steps=1 stagger_refreshes=false ";
  tiny.must_train("out", settings + "projection_update_gap=6 projection_window=6 max_steps=4");
  tiny.lose_result("out");
  tiny.must_train("out", settings + "projection_update_gap=2 projection_window=1");
  std::set<int64_t> refreshed;
  for (const auto& event : tiny.events("out", "refresh"))
    refreshed.insert(event["step"].get<int64_t>());
  EXPECT_EQ(refreshed, (std::set<int64_t>{5, 7, 9, 11}));
  EXPECT_EQ(tiny.losses("out").size(), 12u);
}

// Windows of the old settings, for which the new ones have no memory, are left where they are.
TEST(SlowGaloreResume, AChangedTurnOfGaloreTakesWhatIsPlanned) {
  const TinyRun tiny("changed_turn");
  const std::string settings =
      "method=galore galore_side=big galore_rank=16 max_steps=12 save_steps=4 logging_steps=1 "
      "projection_update_gap=6 projection_window=";
  tiny.must_train("out", settings + "6 stagger_refreshes=false max_steps=4");
  tiny.lose_result("out");
  tiny.must_train("anew", settings + "1");
  const int64_t planned = tiny.events("anew", "start").back()["planned_peak"];
  EXPECT_GT(tiny.events("out", "start").back()["planned_peak"], planned);
  tiny.must_train("out", settings + fmt::format("1 device_memory={}B", planned));
  EXPECT_EQ(tiny.events("out", "memory").back()["device"]["peak"], planned);
  EXPECT_EQ(tiny.losses("out").size(), 12u);
  // And back again, where a window begins late.
  fs::remove_all(tiny.path("out/checkpoint-12"));
  tiny.lose_result("out");
  tiny.must_train("out", settings + "6 stagger_refreshes=false");
}

// Random subspaces have no windows: one that is open in the checkpoint is left where it is, whether
// its turn is one of theirs or not, and whatever its shape.
TEST(SlowGaloreResume, SubspacesAtRandomGoOnFromAnOpenWindow) {
  const TinyRun tiny("random_subspaces");
  const std::string settings =
      "method=galore save_steps=3 logging_steps=1 stagger_refreshes=false ";
  for (const std::string subspace : {"power", "svd"}) {
    for (const std::string gap : {"2", "6"}) {
      const std::string output = subspace + gap;
      const std::string with_gap = settings + "projection_update_gap=" + gap;
      const std::string window = gap == "2" ? "1" : "4";
      tiny.must_train(
          output, with_gap + " max_steps=3 subspace=" + subspace + " projection_window=" + window);
      tiny.lose_result(output);
      tiny.must_train(output, with_gap + " max_steps=6 subspace=random");
      EXPECT_EQ(tiny.losses(output).size(), 6u);
    }
  }
}

}  // namespace
}  // namespace jackscrew
