// tests/cpp/main.cpp -- the program around the tests of one file; --help lists what it can be told.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

int main(int argc, char** argv) {
  doctest::Context context;
  context.setOption("abort-after", 20);  // a wrong kernel fails in thousands of places
  context.applyCommandLine(argc, argv);
  return context.run();
}
