// Package fncall runs function calls: thousands of short, stateless programs, each isolated from all others, without
// provisioning anything per call.
//
// A runtime is a definition over an environment: which image, how a submission is compiled and run. Each runtime that
// is used has one worker process (package guest/cell), which keeps cells ready; it is started with the first call and
// ended when none came for a while. Calls wait in a bounded line, fair between the projects that they are made for, until a
// place is free; results say whose fault an end was, as everywhere.
//
//	Service    what the API calls: Call, Compile, Judge, statistics
//	line       the queue: bounded, round robin by project
//	worker     one worker process and its socket
//	artifacts  compiled programs by what they were made from; calls can run them and never write them
//
// Calls leave nothing behind and are not recorded: an edge that dies takes running calls with it, and who asked asks
// again. Within one edge a call's id makes asking again harmless.
package fncall
