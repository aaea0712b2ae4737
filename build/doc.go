// Package build makes base images from Dockerfiles, through the API of a DSec service: what COPY brings is uploaded as a
// layer, what RUN does is done in a sandbox whose changes become a layer, and the result is a version of a base: the
// layers of its FROM and one for each step.
//
// A [File] is a Dockerfile that was read and found good: one stage, and nothing that is not supported. Anything else is
// refused with its line and the reason, before anything is done. A step whose parent, instruction and input are what they
// were before is not done again.
//
// What is not supported: more than one stage, ADD of URLs and archives, HEALTHCHECK, ONBUILD, STOPSIGNAL, VOLUME, SHELL,
// RUN with mounts or devices, COPY from elsewhere than the build's context.
package build
