#include <cstdio>

int main() { std::puts("jackscrew"); }
